/* The data of the page, and words and colours for its values. */
const D = JSON.parse(document.getElementById("data").textContent);
const two = D.runs.length === 2;
const PASSES = D.passes;
const NONE = -1; /* a value that is no number */
const LOST = "lost"; /* a figure that is none */

/* Elements are made here only, of text: names in a run are not to be
 * trusted. Attributes with a function are listeners. */
function el(tag, attributes, ...children) {
  const svg = /^(svg|g|path|line|text|circle|rect|title)$/.test(tag);
  const e = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (typeof value === "function") e.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false)
      e.setAttribute(name, value === true ? "" : value);
  e.append(...children.flat(Infinity).filter((c) =>
    c !== null && c !== undefined));
  return e;
}

function whole(n) {
  return n.toLocaleString("en-US");
}

/* "1 record", "2 records" */
function many(n, what) {
  return `${whole(n)} ${what}${n === 1 ? "" : "s"}`;
}

/* A number for eyes; what is none in words. */
function number(v, digits = 4) {
  if (v === null || v === undefined) return "–";
  if (typeof v === "string") return v.replace("inf", "∞");
  if (v === 0) return "0";
  const size = Math.abs(v);
  if (size >= 1e5 || size < 1e-3)
    return v.toExponential(digits - 1).replace("e+", "e");
  return Number(v.toPrecision(digits))
    .toLocaleString("en-US", { maximumFractionDigits: 12 });
}

/* A value of a map or a curve. */
function value(v) {
  if (v === null || v === undefined) return "–";
  if (v === NONE) return two ? "no number" : "not finite";
  if (two && v === 0) return "equal";
  return number(v, 3);
}

/* Heavier first; what is no number is the heaviest, no value the least. */
function weight(v) {
  return v === NONE ? Infinity : v === null || v === undefined ? -1 : v;
}
function heavier(a, b) {
  return weight(a) >= weight(b) ? a : b;
}

const unit = two ? "units of rounding" : "RMS of the tensor";
const valueName = two ? "error" : "RMS";

const decades = [0, 1, 10, 100, 1e3, 1e4, 1e6];
let low = Infinity;
let high = 0;
if (!two)
  for (const row of D.map)
    for (const v of row)
      if (v > 0) {
        low = Math.min(low, v);
        high = Math.max(high, v);
      }

/* One of eight colours: decades of an error, equal parts of log RMS. */
function level(v) {
  if (two) {
    const i = decades.findIndex((d) => v <= d);
    return i < 0 ? 7 : i;
  }
  if (v <= 0) return 0;
  if (!(high > low * 1.0001)) return 4;
  const part = Math.log(v / low) / Math.log(high / low);
  return Math.max(1, Math.min(7, 1 + Math.floor(part * 7)));
}

/* What each colour stands for. */
function levels() {
  const text = (a, b) => `${number(a, 2)} to ${number(b, 2)}`;
  if (two)
    return [["equal", 0], ["up to 1", 1]]
      .concat([2, 3, 4, 5, 6].map((i) =>
        [text(decades[i - 1], decades[i]), i]))
      .concat([["more than 1e6", 7]]);
  if (!(high > 0)) return [["0", 0]];
  if (!(high > low * 1.0001)) return [[number(low, 2), 4]];
  const edge = (i) => low * Math.pow(high / low, i / 7);
  return [1, 2, 3, 4, 5, 6, 7].map((i) => [text(edge(i - 1), edge(i)), i]);
}

function legend(noneWord) {
  return el("ul", { class: "legend", "aria-label": "Colours" },
    levels().map(([text, i]) =>
      el("li", {}, el("span", { class: `box l${i}` }), text)),
    el("li", {}, el("span", { class: "box none" }, "×"), noneWord));
}

/* ---- objects ---- */

const objects = D.objects.map(([module, cls, instance], i) => ({
  i, module, cls, places: [], histories: [], sampled: [],
  name: module || (cls ? `${cls}-${instance}` : "values of no module"),
  kind: cls ? `${cls}-${instance}` : "",
}));
const places = D.places.map(
  ([object, pass, records, worst, off, nonfinite, seq, row, nanRow]) => {
    const place = {
      object: objects[object], pass, records, worst, off, nonfinite, seq, row,
      nanRow,
    };
    objects[object].places[pass] = place;
    return place;
  });
for (const h of D.histories) if (h.object >= 0)
  objects[h.object].histories.push(h);
for (const s of D.sampled) if (s.at.object >= 0)
  objects[s.at.object].sampled.push(s);
const rooted = objects.filter((o) => !o.module && o.cls).length === 1 &&
  objects.some((o) => o.module);

function objectName(i) {
  return i >= 0 ? objects[i].name : "a module that is not shown";
}

function sentence(text) {
  return text && text[0].toUpperCase() + text.slice(1) +
    (/[.!?]$/.test(text) ? "" : ".");
}

/* "forward, iteration 1, step 1, rank 0" */
function where(p) {
  const micro = p.microbatch > 1 ? `, micro-batch ${p.microbatch}` : "";
  return `${PASSES[p.pass]}, iteration ${whole(p.iteration)}${micro}, step ` +
    `${whole(p.step)}, rank ${p.rank}`;
}

function errorOf(p) {
  if (p.kind === "near" || p.kind === "equal") return value(p.error);
  return { nan: "NaN or ∞ on one side", shape: "other shape",
    dtype: "other dtype", blind: "no figures" }[p.kind] || p.kind;
}

/* What the reader looks at; listeners are told of an object's number. */
const chosen = { object: -1, listeners: [] };
function choose(object, from) {
  if (object < 0) return;
  chosen.object = object;
  for (const f of chosen.listeners) f(object, from);
}
function chooseButton(object, text) {
  if (object < 0) return el("span", { class: "mono" }, text);
  return el("button", {
    class: "link mono", type: "button",
    click: () => {
      choose(object, "link");
      document.getElementById("modules").scrollIntoView();
    },
  }, text);
}

/* A table; cells are text or elements, columns with num are numbers. */
function table(caption, columns, rows) {
  const cls = (c) => (c.startsWith("#") ? "num" : null);
  return el("table", {},
    el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, columns.map((c) =>
      el("th", { scope: "col", class: cls(c) }, c.replace("#", ""))))),
    el("tbody", {}, rows.map((r) =>
      el("tr", { class: r.off ? "off" : null },
        (r.cells || r).map((c, i) =>
          el("td", { class: cls(columns[i]) }, c))))));
}

/* A closed part whose content is made when it is opened. */
function later(summary, make) {
  const box = el("div", { class: "scroll tall", tabindex: "0",
    role: "region", "aria-label": summary });
  let made = false;
  return el("details", {
    toggle() {
      if (!made) box.append(make());
      made = true;
    },
  }, el("summary", {}, summary), box);
}

function section(id, title, lead, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title),
    lead ? el("p", { class: "lead" }, lead) : null, children);
}

function picker(label, options, picked, change) {
  const select = el("select", { change: () => change(select.value) },
    options.map(([v, text]) =>
      el("option", { value: v, selected: v === picked }, text)));
  return el("label", {}, label, select);
}
