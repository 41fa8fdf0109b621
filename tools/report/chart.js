/* A plot of points along an axis, in SVG. The pointer or the arrow keys walk
 * from point to point, and the line below says what each is.
 *
 * series: {name, style, points: [x, y, text, object], curve, dash, shape}.
 * y null is a gap; what is no number (LOST, on a log axis NONE too) has a place
 * of its own above, and 0 on a log axis one below. */
const LEFT = 66, RIGHT = 18, TOP = 20, BOTTOM = 40, SLOT = 24;

function niceStep(span, most) {
  const raw = span / most;
  const ten = Math.pow(10, Math.floor(Math.log10(raw)));
  return [1, 2, 5, 10].map((f) => f * ten).find((s) => s >= raw);
}

function ticksOf(lo, hi, most) {
  if (!(hi > lo)) return [lo];
  const step = niceStep(hi - lo, most);
  const ticks = [];
  for (let i = Math.ceil(lo / step); i * step <= hi + step * 1e-9; i++)
    ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

/* As many digits as tell the ticks from one another. */
function tickNames(ticks) {
  for (let digits = 3; ; digits++) {
    const names = ticks.map((t) => number(t, digits));
    if (digits > 11 || new Set(names).size === names.length) return names;
  }
}

const isLost = (o, y) => y === LOST || (o.log && y === NONE);

function dot(shape, x, y) {
  const [a, b] = [x.toFixed(1), y.toFixed(1)];
  if (shape === "square") return `M${a},${b}m-3,-3h6v6h-6z`;
  if (shape === "triangle") return `M${a},${b}m0,-4l4,7h-8z`;
  if (shape === "cross")
    return `M${a},${b}m-4,-2.6l1.4,-1.4l2.6,2.6l2.6,-2.6l1.4,1.4l-2.6,2.6` +
      "l2.6,2.6l-1.4,1.4l-2.6,-2.6l-2.6,2.6l-1.4,-1.4l2.6,-2.6z";
  return `M${a},${b}m-3,0a3,3 0 1 0 6,0a3,3 0 1 0 -6,0z`;
}

function scales(o, width, height) {
  const all = o.series.flatMap((s) => s.points).filter((p) => p[1] !== null);
  const real = all.map((p) => p[1])
    .filter((y) => typeof y === "number" && !isLost(o, y));
  const up = all.some((p) => isLost(o, p[1])) ? SLOT : 0;
  const down = o.log && real.some((y) => y <= 0) ? SLOT : 0;
  const used = o.log ? real.filter((y) => y > 0) : real;
  let lo = used.reduce((a, b) => Math.min(a, b), Infinity);
  let hi = used.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!used.length) [lo, hi] = o.log ? [0.1, 10] : [0, 1];
  if (o.log) {
    lo = Math.floor(Math.log10(lo));
    hi = Math.ceil(Math.log10(hi));
    if (hi === lo) hi++;
  } else if (hi === lo) {
    const pad = Math.abs(hi) * 0.05 || 1;
    [lo, hi] = [lo - pad, hi + pad];
  } else {
    const pad = (hi - lo) * 0.06;
    [lo, hi] = [lo - pad, hi + pad];
  }
  const xs = o.series.flatMap((s) => s.points).map((p) => p[0]);
  let x0 = xs.reduce((a, x) => Math.min(a, x), Infinity);
  let x1 = xs.reduce((a, x) => Math.max(a, x), -Infinity);
  if (!xs.length) [x0, x1] = [0, 1];
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  const top = TOP + up;
  const bottom = height - BOTTOM - down;
  return {
    lo, hi, x0, x1, up, down, all,
    x: (v) => LEFT + 8 + (v - x0) / (x1 - x0) * (width - LEFT - RIGHT - 16),
    y: (v) => {
      if (isLost(o, v)) return TOP + SLOT / 2 - 4;
      if (o.log && v <= 0) return height - BOTTOM - SLOT / 2 + 4;
      const at = o.log ? Math.log10(v) : v;
      return bottom - (at - lo) / (hi - lo) * (bottom - top);
    },
  };
}

function axes(o, s, width, height) {
  const parts = [];
  const line = (x1, y1, x2, y2, cls) =>
    parts.push(el("line", { x1, y1, x2, y2, class: cls }));
  const text = (x, y, anchor, t) =>
    parts.push(el("text", { x, y, "text-anchor": anchor }, t));
  const ys = o.log
    ? ticksOf(s.lo, s.hi, 6).filter((t) => t === Math.round(t))
      .map((t) => Math.pow(10, t))
    : ticksOf(s.lo, s.hi, 5);
  const names = tickNames(ys);
  ys.forEach((v, i) => {
    line(LEFT, s.y(v), width - RIGHT, s.y(v), "grid");
    text(LEFT - 8, s.y(v) + 4, "end", names[i]);
  });
  if (s.down) text(LEFT - 8, s.y(0) + 4, "end", two ? "equal" : "0");
  if (s.up) text(LEFT - 8, s.y(LOST) + 4, "end", two ? "no num." : "NaN, ∞");
  const most = Math.max(2, Math.floor((width - LEFT) / 90));
  for (const v of ticksOf(s.x0, s.x1, most).filter((t) => t % 1 === 0))
    text(s.x(v), height - BOTTOM + 18, "middle", whole(v));
  line(LEFT, height - BOTTOM, width - RIGHT, height - BOTTOM, "axis");
  text(width - RIGHT, height - 5, "end", o.xName);
  text(LEFT, 11, "start", o.yName);
  for (const m of o.marks || []) {
    if (m.x < s.x0 || m.x > s.x1) continue;
    const x = s.x(m.x);
    const right = x > width * 0.7;
    line(x, TOP - 4, x, height - BOTTOM, "mark");
    parts.push(el("text", { x: x + (right ? -6 : 6), y: TOP + 5,
      "text-anchor": right ? "end" : "start", class: "marked" }, m.text));
  }
  return parts;
}

function curvesOf(o, s) {
  return o.series.flatMap((r) => {
    let line = "";
    let dots = "";
    let pen = "M";
    for (const [x, y] of r.points) {
      if (y === null) {
        pen = "M";
        continue;
      }
      const [px, py] = [s.x(x), s.y(y)];
      const lost = isLost(o, y);
      if (y === LOST) {
        if (r.points.length < 60) dots += dot("cross", px, py);
        else line += `M${px.toFixed(1)},${py.toFixed(1)}h.1`;
        pen = "M";
        continue;
      }
      line += `${pen}${px.toFixed(1)},${py.toFixed(1)}`;
      pen = "L";
      if (!r.curve || r.points.length < 60)
        dots += dot(lost ? "cross" : r.shape, px, py);
    }
    return [
      r.curve ? el("path", { d: line || "M0,0", class:
        `curve ${r.style}${r.dash ? " dash" : ""}` }) : null,
      el("path", { d: dots || "M0,0", class: `dots ${r.style}` }),
    ];
  });
}

function chart(o) {
  const box = el("div", { class: "chart", tabindex: "0", role: "slider",
    "aria-label": o.label, "aria-valuemin": "1" });
  const say = el("p", { class: "say" }, "Point at the plot, or use the arrow " +
    "keys in it.");
  const height = o.height || 300;
  const points = o.series.flatMap((s) => s.points)
    .filter((p) => p[1] !== null).sort((a, b) => a[0] - b[0]);
  let at = -1;
  let s = null;
  let svg = null;
  box.setAttribute("aria-valuemax", Math.max(1, points.length));
  box.setAttribute("aria-valuenow", "1");
  box.setAttribute("aria-valuetext", `${many(points.length, "point")}`);

  function draw() {
    const width = Math.max(260, box.clientWidth);
    s = scales(o, width, height);
    svg = el("svg", { viewBox: `0 0 ${width} ${height}`, width, height,
      "aria-hidden": "true" }, axes(o, s, width, height), curvesOf(o, s));
    box.replaceChildren(svg);
    if (at >= 0) cursor();
  }

  function cursor() {
    const [x, y] = points[at];
    svg.querySelectorAll(".cursor,.at").forEach((e) => e.remove());
    svg.append(
      el("line", { class: "cursor", x1: s.x(x), x2: s.x(x), y1: TOP,
        y2: height - BOTTOM }));
    if (y !== null)
      svg.append(el("circle", { class: "at", cx: s.x(x), cy: s.y(y), r: 6 }));
  }

  function go(to) {
    if (!points.length) return;
    at = Math.max(0, Math.min(points.length - 1, to));
    say.textContent = points[at][2];
    box.setAttribute("aria-valuenow", at + 1);
    box.setAttribute("aria-valuetext", points[at][2]);
    cursor();
  }

  function nearest(e) {
    const r = svg.getBoundingClientRect();
    const [x, y] = [e.clientX - r.left, e.clientY - r.top];
    let best = -1;
    let least = Infinity;
    points.forEach((p, i) => {
      const dy = s.y(p[1]) - y;
      const d = Math.pow(s.x(p[0]) - x, 2) * 4 + dy * dy;
      if (d < least) [least, best] = [d, i];
    });
    return best;
  }

  const pick = () => at >= 0 && o.pick && o.pick(points[at][3]);
  box.addEventListener("pointermove", (e) => go(nearest(e)));
  box.addEventListener("click", (e) => {
    go(nearest(e));
    pick();
  });
  box.addEventListener("keydown", (e) => {
    const page = Math.ceil(points.length / 20);
    const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1,
      ArrowDown: at - 1, Home: 0, End: points.length - 1,
      PageUp: at + page, PageDown: at - page }[e.key];
    if (e.key === "Enter") pick();
    else if (to === undefined) return;
    else go(to);
    e.preventDefault();
  });
  new ResizeObserver(draw).observe(box);
  const keys = el("ul", { class: "legend" }, o.series.map((r) =>
    el("li", {}, r.curve
      ? el("span", { class: `key ${r.style}${r.dash ? " dash" : ""}` })
      : el("svg", { width: 12, height: 12, "aria-hidden": "true" },
        el("path", { d: dot(r.shape, 6, 6), class: `dots ${r.style}` })),
    r.name)));
  return el("div", {}, box, o.series.length > 1 ? keys : null, say);
}
