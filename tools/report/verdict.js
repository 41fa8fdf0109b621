/* On top: the verdict, who is to blame, and what was counted. */
function tiles(list) {
  return el("dl", { class: "tiles" }, list.map(([text, n]) =>
    el("div", {}, el("dt", {}, text),
      el("dd", {}, typeof n === "number" ? whole(n) : n))));
}

function shares(c) {
  const parts = [["equal", c.equal, "c0"],
    ["within rounding", c.rounding, "c1"], ["differ", c.differ, "c2"],
    ["without figures", c.blind, "c3"]].filter((p) => p[1] > 0);
  const bar = el("div", { class: "share", role: "img", "aria-label":
    parts.map((p) => `${p[0]} ${whole(p[1])}`).join(", ") });
  for (const [, n, cls] of parts) {
    const span = el("span", { class: cls });
    span.style.flexGrow = n;
    bar.append(span);
  }
  const keys = el("ul", { class: "legend" }, parts.map(([text, n, cls]) =>
    el("li", {}, el("span", { class: `key ${cls}` }),
      `${text}, ${number(100 * n / c.compared, 3)} %`)));
  return parts.length ? [bar, keys] : [];
}

const said = {
  same: ["good", "=", "Nothing differs."],
  rounding: ["good", "≈", "No more than rounding explains."],
  unsure: ["warn", "?", "More than rounding, and nobody to blame."],
  differs: ["bad", "≠", "These runs part."],
  healthy: ["good", "✓", "Nothing found."],
  unhealthy: ["bad", "!", ""],
}[D.verdict];

function head(title, mono, at, reason) {
  return [
    el("p", { class: "word" },
      el("span", { class: "glyph", "aria-hidden": "true" }, said[1]),
      el("span", {}, "Verdict: ",
        el("span", { class: "said", id: "said" }, D.verdict))),
    el("h1", { class: `culprit${mono ? " mono" : ""}${
      title.length > 120 ? " long" : ""}` }, title),
    at ? el("p", { class: "dim" }, sentence(at)) : null,
    reason ? el("p", { class: "reason" }, sentence(reason)) : null,
  ];
}

function jump(object, text) {
  return el("button", {
    type: "button", class: "main",
    click: () => {
      choose(object, "link");
      document.getElementById("modules").scrollIntoView();
    },
  }, text);
}

function verdictOfTwo() {
  const c = D.counts;
  const p = D.culprit;
  const top = p
    ? head(objectName(p.object), true, where(p), D.reason)
    : head(said[2], false, "", D.reason);
  const odd = [["of other shape", c.shape], ["of other dtype", c.dtype],
    ["NaN or ∞ on one side", c.nan], ["NaN or ∞ on both alike", c.nan_alike],
    ["only in A", c.only_a], ["only in B", c.only_b]].filter((x) => x[1]);
  return el("section", { id: "verdict", class: `hero ${said[0]}`,
    "aria-label": "Verdict" }, top,
    p && p.object >= 0 ? jump(p.object, "Show the module") : null,
    D.first ? el("dl", { class: "facts" },
      p && p.name !== D.first.name ? [el("dt", {}, "Record"),
        el("dd", { class: "mono" }, p.name)] : null,
      el("dt", {}, "First that is off"),
      el("dd", {}, chooseButton(D.first.object, D.first.name),
        ` in ${objectName(D.first.object)}, error ${errorOf(D.first)}`))
      : null,
    tiles([["compared", c.compared], ["equal", c.equal],
      ["within rounding", c.rounding], ["differ", c.differ]].concat(odd)),
    shares(c),
    c.functions_a || c.functions_b
      ? el("p", { class: "small dim", id: "functions" }, "Not compared: " +
        `${whole(c.functions_a)} records of functions only in A, ` +
        `${whole(c.functions_b)} only in B.`)
      : null,
    D.text ? el("p", { class: "small dim" }, "A side is a text log, exact " +
      "to 1e-5: what is nearer counts as equal.") : null);
}

/* Notes come last, and make no run unhealthy. */
const isNote = (f) => f.detail.startsWith("note: ");

function verdictOfOne() {
  const f = D.findings;
  const n = D.findings_of;
  const ill = n && !isNote(f[0]);
  const top = ill
    ? head(objectName(f[0].at.object), true,
      `${{ nan: "NaN", inf: "infinity" }[f[0].kind] || f[0].kind}: ` +
      where(f[0].at), f[0].detail)
    : head(D.bounds.records ? said[2] : "There is no record to look at.",
      false);
  return el("section", { id: "verdict", class: `hero ${said[0]}`,
    "aria-label": "Verdict" }, top,
    ill && f[0].at.object >= 0 ? jump(f[0].at.object, "Show the module") : null,
    tiles([["records", D.bounds.records], ["findings", n],
      ["records with NaN or ∞", D.nonfinite], ["lost", D.runs[0].lost]]));
}

function worstRecords() {
  return section("worst", "Worst records", "The pairs with the largest " +
    `errors, in ${unit}. What is no number ranks above all numbers.`,
    el("div", { class: "scroll tall", tabindex: "0", role: "region",
      "aria-label": "Worst records" }, table("Worst records",
      ["record", "module", "#error", "by", "#iteration", "#rank"],
      D.ranked.map((p) => [
        el("span", { class: "mono" }, p.name),
        chooseButton(p.object, objectName(p.object)), errorOf(p),
        p.kind === "near" ? p.by : p.kind, whole(p.iteration), p.rank,
      ]))));
}

function findings() {
  const hidden = D.findings_of - D.findings.length;
  return section("worst", "Findings", "Of each kind a module is told once, " +
    "at its first record." + (hidden ? ` The first ` +
    `${D.findings.length} of ${whole(D.findings_of)} are here.` : ""),
    el("div", { class: "scroll" }, table("Findings",
      ["kind", "module", "record", "what", "#records", "#iteration", "#rank"],
      D.findings.map((f) => [
        el("span", { class: isNote(f) ? "tag" : "tag bad" }, f.kind),
        chooseButton(f.at.object, objectName(f.at.object)),
        el("span", { class: "mono" }, f.at.name), f.detail,
        whole(f.records), whole(f.at.iteration), f.at.rank,
      ]))));
}

function missing() {
  const side = (m, name) => m.list.map(([object, n, first, last]) =>
    [name, el("span", { class: "mono" }, object || "values of no module"),
      whole(n), first === last ? whole(first)
        : `${whole(first)} to ${whole(last)}`]);
  const [a, b] = D.missing;
  const left = a.of + b.of - a.list.length - b.list.length;
  return section("missing", "On one side only",
    left ? `${whole(left)} more objects are not listed.` : "",
    el("div", { class: "scroll tall", tabindex: "0", role: "region",
      "aria-label": "Objects on one side only" },
    table("On one side only", ["only in", "object", "#records", "#steps"],
      side(a, "A").concat(side(b, "B")))));
}
