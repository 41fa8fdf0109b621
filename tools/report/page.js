/* Puts the page together. */
function mapRows(pass) {
  return places.filter((p) => p.row >= 0 && p.pass === pass)
    .sort((a, b) => a.seq - b.seq)
    .map((p) => ({ name: p.object.name, object: p.object.i,
      cells: D.map[p.row], worst: p.worst }));
}

const paintValue = (v) => (v === NONE ? { mark: "both" } : { level: level(v) });
const heavierValue = (a, b) => weight(a) - weight(b);

function heatSection() {
  const passes = PASSES.map((name, i) => [String(i), name]).filter((p) =>
    places.some((x) => x.row >= 0 && x.pass === Number(p[0])));
  let pass = two && D.culprit && mapRows(D.culprit.pass).length
    ? D.culprit.pass : Number(passes[0][0]);
  let order = "order";
  const sorted = () => {
    const rows = mapRows(pass);
    if (order === "worst")
      rows.sort((a, b) => weight(b.worst) - weight(a.worst));
    return rows;
  };
  const map = heatMap({ label: "Heat map of modules by iterations",
    rows: sorted(), paint: paintValue, tell: value, heavier: heavierValue });
  const [rows, of] = D.bounds.rows;
  return section("heat", "Modules by iterations", (two
    ? "The largest error of what each module gave, in units of rounding."
    : "The largest RMS of what each module gave.") +
    (columnWidth > iterationStep ? ` A column is the worst of ` +
      `${whole(columnWidth / iterationStep)} iterations.` : "") +
    (rows < of ? ` The ${two ? "worst" : "first"} ${whole(rows)} of ` +
      `${whole(of)} rows are here.` : ""),
  el("div", { class: "row" },
    picker("Pass", passes, String(pass), (v) => {
      pass = Number(v);
      map.show(sorted());
    }),
    picker("Rows", [["order", "in the order of execution"],
      ["worst", "worst first"]], order, (v) => {
      order = v;
      map.show(sorted());
    })), map.element, legend(two ? "no number" : "NaN or infinite"));
}

function curveSection() {
  const place = el("div", {});
  const styles = { 1: ["s1", "circle"], 2: ["s2", "triangle"],
    3: ["s3", "square"], 4: ["s4", "circle"], 5: ["s5", "square"],
    6: ["s5", "triangle"] };
  const tell = ([seq, object, pass, iteration, of, v, before]) =>
    `${objectName(object)}, ${PASSES[pass]}, iteration ${whole(iteration)}, ` +
    `record ${whole(seq)}: ${two ? "gave" : "RMS"} ${value(v)}` +
    (before !== null ? `, got ${value(before)}` : "") +
    (of > 1 ? `; the worst of ${whole(of)} records` : "");
  const thinned = (points) => points.some((p) => p[4] > 1);
  const draw = (which) => {
    const points = D.curve[which];
    const series = Object.entries(styles).map(([pass, [style, shape]]) => ({
      name: PASSES[pass], style, shape,
      points: points.filter((p) => p[2] === Number(pass))
        .map((p) => [p[0], p[5], tell(p), p[1]]),
    })).filter((s) => s.points.length);
    const c = two ? D.culprit : null;
    place.replaceChildren(
      chart({ label: `${valueName} along the order of execution`, series,
        log: true, xName: `record of rank ${D.curve.rank}`, yName: unit,
        height: 340, pick: (object) => choose(object, "chart"),
        marks: c && c.rank === D.curve.rank
          ? [{ x: c.seq, text: `culprit: ${objectName(c.object)}` }] : [] }),
      thinned(points) ? el("p", { class: "small dim" }, `${whole(
        points.length)} points stand for ${many(
        points.reduce((n, p) => n + p[4], 0), "record")}: each is the worst ` +
        "of its neighbours.") : "",
      later("As a table", () => table("Along the order", ["#record", "module",
        "pass", "#iteration", `#${valueName}`], points.slice(0, 1000).map(
        (p) => [whole(p[0]), objectName(p[1]), PASSES[p[2]], whole(p[3]),
          value(p[5])]))));
  };
  draw("focus");
  return section("growth", two ? "Error along the order of execution"
    : "Magnitude along the order of execution", two
    ? "What each call gave. Rounding grows slowly; a fault is a step that " +
      "comes out of nothing."
    : "What each call gave, in the order in which it was called.",
  el("div", { class: "row" }, picker("Show", [
    ["focus", `iteration ${whole(D.curve.iteration)}`],
    ["whole", "the whole run"]], "focus", draw)), place);
}

function nanSection() {
  const rows = places.filter((p) => p.nanRow >= 0)
    .sort((a, b) => a.seq - b.seq)
    .map((p) => ({ name: `${p.object.name}, ${PASSES[p.pass]}`,
      object: p.object.i, cells: D.nan[p.nanRow][0].map((a, i) => {
        const b = D.nan[p.nanRow][1][i];
        return a === null && b === null ? null : [a || 0, b || 0];
      }) }));
  const title = "NaN and infinities";
  if (!rows.length)
    return section("nan", title, "There is none in any record" +
      (two ? " of either run." : "."));
  const map = heatMap({ label: "NaN and infinities", rows,
    paint: ([a, b]) => (!a && !b ? { level: 0 }
      : { mark: !two || (a && b) ? "both" : a ? "a" : "b" }),
    tell: (c) => (c === null ? "–" : two ? `A ${whole(c[0])}, B ${whole(c[1])}`
      : many(c[0], "element")),
    heavier: (a, b) => (a ? a[0] + a[1] : -1) - (b ? b[0] + b[1] : -1) });
  const [shown, of] = D.bounds.nan_rows;
  return section("nan", title, "Elements that are not finite, at most in one " +
    "record." + (shown < of ? ` The first ${whole(shown)} of ${whole(of)} ` +
    "rows are here." : ""), map.element,
  two ? el("ul", { class: "legend" }, el("li", {}, "/ in A only"),
    el("li", {}, "\\ in B only"), el("li", {}, "× in both")) : null);
}

function rankSection() {
  const rows = D.ranks.filter((r) => r[5]).map((r) =>
    ({ name: `rank ${r[0]}`, cells: r[5] }));
  const map = rows.length > 1 && columnCount > 0
    ? heatMap({ label: "Heat map of ranks by iterations", rows,
      paint: paintValue, tell: value, heavier: heavierValue }) : null;
  return section("ranks", "Ranks", map ? `The largest ${two ? "error" : "RMS"
  } on each rank.` : "", map ? [map.element,
    legend(two ? "no number" : "NaN or infinite")] : null,
  el("div", { class: "scroll tall", tabindex: "0", role: "region",
    "aria-label": "Table of ranks" },
  table("Ranks", ["#rank", "#records", `#worst ${valueName}`].concat(
    two ? ["#off"] : [], ["#with NaN or ∞"]), D.ranks.map((r) =>
    [r[0], whole(r[1]), value(r[2])].concat(two ? [whole(r[3])] : [],
      [whole(r[4])])))));
}

/* ---- the runs themselves ---- */

function flatten(x, path, into) {
  if (x !== null && typeof x === "object")
    for (const [k, v] of Object.entries(x))
      flatten(v, path ? `${path}.${k}` : k, into);
  else into.set(path, String(x));
  return into;
}

function infoOf(run) {
  try {
    return flatten(JSON.parse(run.info || "{}"), "", new Map());
  } catch {
    return new Map();
  }
}

/* How the ranks of two layouts were paired, in words. */
function layoutWords(l) {
  const side = (name, [ranks, data, stages]) => `${name} has ` +
    `${many(ranks, "rank")} (${many(data, "part")} of the batch, ` +
    `${many(stages, "stage")} of a pipeline)`;
  return [`The layouts differ: ${side("A", l.a)}, ${side("B", l.b)}. Pairs: ` +
    `${whole(l.copies)} of copies, ${whole(l.merged)} of merged shards, ` +
    `${whole(l.batch)} of merged parts of the batch.`]
    .concat(l.factor !== 1 && l.factor ? [`Gradients of B are ${number(
      l.factor)} times those of A, as a mean over another part of the batch ` +
      "makes them."] : [],
    l.uncompared.map(([n, why]) =>
      `Not compared: ${many(n, "record")}, ${why}.`));
}

function runsSection() {
  const infos = D.runs.map(infoOf);
  const facts = [["run", (r) => r.name], ["attempt", (r) => r.attempt],
    ["records", (r) => whole(r.records)], ["lost", (r) => whole(r.lost)],
    ["processes", (r) => whole(r.processes)]].map(([name, f]) =>
    [name].concat(D.runs.map((r) => String(f(r)))));
  const keys = [...new Set(infos.flatMap((m) => [...m.keys()]))].sort();
  const differ = keys.filter((k) => two && infos[0].get(k) !== infos[1].get(k));
  const cells = (k) => [el("span", { class: "mono" }, k)].concat(
    infos.map((m) => el("span", { class: "mono" }, m.get(k) || "–")));
  const columns = [""].concat(two ? ["A", "B"] : ["value"]);
  return section("runs-part", two ? "The two runs" : "The run", "",
    el("div", { class: "scroll" }, table("Runs", columns, facts)),
    two && D.layout ? el("ul", { class: "plain" },
      layoutWords(D.layout).map((t) => el("li", {}, t))) : null,
    two ? [el("h3", {}, "What differs around them"), differ.length
      ? el("div", { class: "scroll" },
        table("What differs", columns, differ.map(cells)))
      : el("p", { class: "dim" }, keys.length
        ? "Versions, devices, switches and command lines are the same."
        : "Nothing is known of their versions and devices.")] : null,
    keys.length ? later("All that is known of their processes", () =>
      table("All", columns, keys.map(cells))) : null);
}

function aboutSection() {
  const b = D.bounds;
  const of = ([n, all]) => (n === all ? `all ${whole(n)}`
    : `${whole(n)} of ${whole(all)}`);
  const iterations = columnCount === 0 ? "There is no iteration."
    : columnWidth > iterationStep
      ? `Maps: ${whole(columnCount)} columns of ${whole(columnWidth /
        iterationStep)} iterations; a cell is the worst of them.`
      : `Maps: each iteration has a column (${whole(columnCount)}).`;
  return section("about", "What this page shows", "A page has room for some " +
    "of millions of records. Where it is thinned, the worst stays; the " +
    `${two ? "culprit, the first that is off and the ranked records"
      : "findings"} always do.`,
  el("ul", { class: "plain" }, [
    `${two ? "Pairs" : "Records"} that were read: ${whole(b.records)}, all ` +
      "of them counted in the verdict and the tree.",
    `Modules of the tree: ${of(b.objects)}.`,
    `${iterations} Rows: ${of(b.rows)}.`,
    `Histories of tensors: ${whole(b.histories[0])} of about ${
      whole(b.histories[1])}` + (D.bin > 1 ? `; a point is the worst of ` +
      `${whole(D.bin)} iterations.` : "; each record is a point."),
    `Samples: of ${many(D.sampled.length, "record")}, the worst of each ` +
      `module and pass, of ${whole(b.places)} such places; at most ` +
      `${b.values} of each.`,
    "The page asks nothing of any network, and nothing can make it.",
  ].map((t) => el("li", {}, t))));
}

/* ---- frame ---- */

function themeButton() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let own = null; /* what was chosen by hand; null: as the system says */
  const apply = () => {
    const theme = own || (system.matches ? "dark" : "light");
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light theme" : "Dark theme";
    document.dispatchEvent(new Event("theme"));
  };
  button.addEventListener("click", () => {
    own = root.dataset.theme === "dark" ? "light" : "dark";
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

function navigation(sections) {
  const names = { verdict: "Verdict", worst: two ? "Worst" : "Findings",
    modules: "Modules", heat: "Heat map", growth: two ? "Growth" : "Order",
    nan: "NaN", ranks: "Ranks", missing: "Missing",
    "runs-part": two ? "Runs" : "Run", about: "About" };
  const links = new Map();
  for (const s of sections)
    if (names[s.id])
      links.set(s, el("a", { href: `#${s.id}` }, names[s.id]));
  document.getElementById("nav").append(...links.values());
  const seen = new IntersectionObserver(() => {
    const now = sections.filter((s) => links.has(s) &&
      s.getBoundingClientRect().top < innerHeight * 0.35).pop();
    for (const [s, link] of links)
      if (s === now) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
  }, { rootMargin: "-20% 0px -60% 0px", threshold: [0, 0.1] });
  sections.forEach((s) => seen.observe(s));
}

function heading() {
  const names = D.runs.map((r) => r.name);
  document.title = `${D.verdict}: ${names.join(" against ")} - tracerd`;
  const place = document.getElementById("runs");
  names.forEach((name, i) =>
    place.append(i ? " against " : "", el("b", {}, name)));
  place.title = names.join(" against ");
  document.getElementById("foot").append(
    `Made by tracectl ${D.version}, ${D.made}.`);
}

function main() {
  if (!two) document.documentElement.classList.add("one");
  themeButton();
  heading();
  const some = D.bounds.records > 0;
  const sections = [two ? verdictOfTwo() : verdictOfOne()];
  if (!two && D.findings.length) sections.push(findings());
  if (some) {
    const detail = detailView();
    sections.push(section("modules", "Modules", (two
      ? "Each module with the largest error of what it gave, forward, " +
        "backward and of the gradients of its parameters."
      : "Each module with the largest RMS of what it gave.") +
      " Where one is closed, small squares are of the worst inside.",
    el("div", { class: "two" }, treeView(), detail)));
    if (D.curve.whole.length) sections.push(curveSection());
    if (D.map.length) sections.push(heatSection());
    if (two && D.ranked.length) sections.push(worstRecords());
    sections.push(nanSection(), rankSection());
  } else {
    sections.push(section("modules", "Modules", two
      ? "No record of one run corresponds to one of the other."
      : "This run has no records."));
  }
  if (two && D.missing.some((m) => m.of)) sections.push(missing());
  sections.push(runsSection(), aboutSection());
  document.getElementById("main").replaceChildren(...sections);
  navigation(sections);
  const start = startOf();
  if (some) choose(start ? start.object : places[0].object.i, "start");
}

main();
