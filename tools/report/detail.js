/* What is known of the chosen module: its passes, the history of a tensor's
 * figures, and samples of both runs. */
const FIGURES = ["max", "min", "mean", "std", "l2", "not finite"];
const IO = ["", "input", "output"];

/* "forward output 0", "grad fc.weight", with the rank where there are more */
function tensorName(h) {
  const io = IO[h.io] ? ` ${IO[h.io]}` : "";
  const path = h.path ? ` ${h.path}` : h.io ? ` ${h.position}` : "";
  const rank = D.ranks.length > 1 ? `, rank ${h.rank}` : "";
  return `${PASSES[h.pass]}${io}${path}${rank}`;
}

function historyPoints(h, figure, side) {
  return h.points.map((p) => {
    const [iteration, of, v] = p;
    const of_text = of > 1 ? `, the worst of ${whole(of)}` : "";
    if (figure < 0)
      return [iteration, v, `iteration ${whole(iteration)}: ${valueName} ` +
        `${value(v)}${of_text}`];
    const f = p[3 + side];
    const x = f ? f[figure] : null;
    const lost = typeof x === "string" || (f && x === null && f[5] > 0);
    return [iteration, lost ? LOST : x,
      `iteration ${whole(iteration)}: ${FIGURES[figure]} ` +
      `${two ? `of ${side ? "B" : "A"} ` : ""}${number(x, 6)}${of_text}`];
  });
}

function historyChart(h, figure) {
  const one = (side, name, style, dash) => ({ name, style, dash, curve: true,
    points: historyPoints(h, figure, side) });
  const series = figure < 0 || !two
    ? [one(0, figure < 0 ? valueName : FIGURES[figure], "s1", false)]
    : [one(0, "A", "s1", false), one(1, "B", "s2", true)];
  const name = figure < 0 ? unit : FIGURES[figure];
  return chart({ label: `History of ${tensorName(h)}, ${name}`, series,
    log: figure < 0, xName: "iteration", yName: name, height: 260,
    marks: two && D.culprit && objects[h.object].i === D.culprit.object
      ? [{ x: D.culprit.iteration, text: "culprit" }] : [] });
}

function historyTable(h) {
  const sides = two ? ["A", "B"] : [""];
  const columns = ["#iteration", `#${valueName}`].concat(
    sides.flatMap((s) => FIGURES.map((f) => `#${f} ${s}`.trim())));
  return table(`History of ${tensorName(h)}`, columns, h.points.map((p) =>
    [whole(p[0]), value(p[2])].concat(
      sides.flatMap((_, i) => FIGURES.map((f, j) =>
        p[3 + i] ? number(p[3 + i][j], 6) : "–")))));
}

function historyView(o) {
  const list = o.histories.slice().sort((a, b) =>
    a.pass - b.pass || b.io - a.io || a.rank - b.rank ||
    a.position - b.position);
  if (!list.length)
    return el("p", { class: "empty" }, "No history of this module is on the " +
      "page: others weigh more, and there is room for " +
      `${many(D.bounds.histories[0], "tensor")}.`);
  let h = list[0];
  let figure = two ? -1 : 4;
  const place = el("div", {});
  const draw = () => {
    const first = h.points.length < 2
      ? el("p", { class: "small dim" }, "There is one iteration of it.") : null;
    place.replaceChildren(...[first, historyChart(h, figure),
      later("As a table", () => historyTable(h))].filter(Boolean));
  };
  draw();
  return el("div", {}, el("div", { class: "row" },
    picker("Tensor", list.map((x, i) => [String(i), tensorName(x)]), "0",
      (v) => {
        h = list[Number(v)];
        draw();
      }),
    picker("Figure", [["-1", two ? "error" : "RMS"]].concat(
      FIGURES.map((f, i) => [String(i), f])), String(figure), (v) => {
      figure = Number(v);
      draw();
    })), place);
}

/* ---- samples ---- */

function figuresTable(s) {
  const sides = two ? [["A", s.a], ["B", s.b]] : [["", s.a]];
  return el("div", { class: "scroll", tabindex: "0", role: "region",
    "aria-label": "Figures" },
  table("Figures", (two ? ["run"] : []).concat(["dtype", "shape"],
    FIGURES.map((f) => `#${f}`), ["hash"]),
  sides.filter((x) => x[1]).map(([name, x]) => (two ? [name] : []).concat(
    [x.dtype, x.shape.replaceAll(" ", "\u00a0×\u00a0") || "scalar"],
    x.figures.map((f) => number(f, 5)),
    [el("span", { class: "mono dim" }, x.hash || "–")]))));
}

function sampleRows(s) {
  const rms = Math.max(...[s.a, s.b].filter(Boolean).map((x) =>
    typeof x.figures[4] === "number" ? x.figures[4] / Math.sqrt(x.n) : 0));
  return s.index.map((index, i) => {
    const [x, y] = [s.a.value[i], s.b ? s.b.value[i] : undefined];
    if (!two) return [whole(index), number(x, 9)];
    const d = typeof x === "number" && typeof y === "number" ? y - x : null;
    const units = d !== null && rms > 0 && s.at.unit > 0
      ? Math.abs(d) / rms / s.at.unit : null;
    const off = units === null ? x !== y : units > 10;
    return { off, cells: [whole(index), number(x, 9),
      y === undefined ? "–" : number(y, 9),
      d === null ? (x === y ? "0" : "–") : number(d, 4),
      units === null ? "–" : number(units, 3)] };
  });
}

function samplesView(o) {
  const list = o.sampled.slice().sort((a, b) =>
    weight(b.at.error) - weight(a.at.error) || a.at.seq - b.at.seq);
  if (!list.length)
    return el("p", { class: "empty" }, "No samples of this module are on " +
      "the page: the worst records of " +
      `${many(D.sampled.length, "place")} are.`);
  const culprit = two && D.culprit
    ? list.findIndex((s) => s.at.name === D.culprit.name &&
      s.at.rank === D.culprit.rank) : -1;
  const place = el("div", {});
  const draw = (s) => {
    const more = s.a.samples - s.index.length;
    place.replaceChildren(
      el("dl", { class: "facts" },
        el("dt", {}, "record"), el("dd", { class: "mono" }, s.at.name),
        el("dt", {}, "when"), el("dd", {}, where(s.at)),
        two ? [el("dt", {}, "error"), el("dd", {}, errorOf(s.at),
          s.at.kind === "near" ? `, told by ${s.at.by}` : "")] : null),
      figuresTable(s),
      el("div", { class: "scroll tall", tabindex: "0", role: "region",
        "aria-label": "Samples" },
      table("Samples", two
        ? ["#element", "#A", "#B", "#B − A", "#units of rounding"]
        : ["#element", "#value"], sampleRows(s))),
      more > 0 ? el("p", { class: "small dim" }, `The first ` +
        `${s.index.length} of ${whole(s.a.samples)} samples.`) : "");
  };
  const first = culprit < 0 ? 0 : culprit;
  draw(list[first]);
  return el("div", {}, el("div", { class: "row" },
    picker("Record", list.map((s, i) => [String(i),
      `${PASSES[s.at.pass]} ${IO[s.at.io] || s.at.path}, iteration ` +
      `${s.at.iteration}, rank ${s.at.rank}`]), String(first),
    (v) => draw(list[Number(v)]))), place);
}

function detailView() {
  const box = el("div", { role: "region", "aria-label": "The chosen module",
    id: "detail" });
  chosen.listeners.push((object) => {
    const o = objects[object];
    const rows = o.places.filter(Boolean);
    box.replaceChildren(
      el("p", { class: "crumb mono", id: "detail-name" }, o.name),
      el("p", { class: "small dim" }, o.kind),
      el("h3", {}, "Passes"),
      el("div", { class: "scroll" }, table("Passes", ["pass", "#records",
        `#worst ${valueName}`].concat(two ? ["#off"] : [],
        ["#with NaN or ∞"]), rows.map((p) =>
        [PASSES[p.pass], whole(p.records), value(p.worst)].concat(
          two ? [whole(p.off)] : [], [whole(p.nonfinite)])))),
      el("h3", {}, "History"), historyView(o),
      el("h3", {}, two ? "Samples, side by side" : "Samples"),
      samplesView(o));
  });
  return box;
}
