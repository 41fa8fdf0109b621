/* A heat map of rows by iterations. It is drawn on a canvas as large as what
 * is seen of it, so that thousands of rows cost nothing; the arrow keys walk
 * from cell to cell, and a table says the same.
 *
 * rows: {name, object, cells}; paint(cell) is {level} or {mark}, null for
 * nothing; tell(cell) in words. */
const ROW = 19, HEAD = 24;

const [firstColumn, columnWidth, columnCount, iterationStep] = D.columns;

/* The iterations of a column: "7", "1 to 40". */
function columnName(i) {
  const from = firstColumn + i * columnWidth;
  const to = from + columnWidth - iterationStep;
  return to > from ? `${whole(from)} to ${whole(to)}` : whole(from);
}

function colour(name) {
  return getComputedStyle(document.documentElement)
    .getPropertyValue(name).trim();
}

function mapTable(o, rows) {
  const most = Math.min(rows.length, 1000);
  const full = columnCount <= 24;
  const name = (r) => el("span", { class: "mono" }, r.name);
  const note = most < rows.length
    ? el("p", { class: "small dim" }, `The first ${whole(most)} of ` +
      `${whole(rows.length)} rows.`) : null;
  const body = rows.slice(0, most).map((r) => {
    if (full) return [name(r)].concat(r.cells.map((c) => o.tell(c)));
    let at = 0;
    r.cells.forEach((c, i) => {
      if (o.heavier(c, r.cells[at]) > 0) at = i;
    });
    return [name(r), o.tell(r.cells[at]), columnName(at),
      whole(r.cells.filter((c) => c !== null).length)];
  });
  const columns = full
    ? ["row"].concat([...Array(columnCount).keys()].map((i) =>
      `#${columnName(i)}`))
    : ["row", "#worst", "#at iteration", "#columns with records"];
  return el("div", {}, note, table(o.label, columns, body));
}

function heatMap(o) {
  const inner = el("div", {});
  const canvas = el("canvas", {});
  const say = el("p", { class: "say", "aria-live": "polite" }, "Point at a " +
    "cell, or use the arrow keys in the map; Enter shows its module.");
  const box = el("div", { class: "mapbox", tabindex: "0", role: "application",
    "aria-roledescription": "heat map", "aria-label": `${o.label}, ` +
      `${many(o.rows.length, "row")} by ${many(columnCount, "column")}` },
  inner);
  let rows = o.rows;
  let at = null;
  let paints = new Map();
  let labels = 200;
  let cell = 8;
  inner.append(canvas);

  function sizes() {
    const wide = box.clientWidth;
    const longest = rows.reduce((n, r) => Math.max(n, r.name.length), 8);
    labels = Math.min(longest * 7.3 + 20, wide * (wide < 560 ? 0.45 : 0.34));
    cell = Math.max(wide < 560 ? 7 : 4,
      Math.min(34, (wide - labels - 8) / columnCount));
    inner.style.width =
      `${Math.max(wide, Math.ceil(labels + cell * columnCount) + 8)}px`;
    inner.style.height = `${HEAD + ROW * rows.length + 4}px`;
    box.style.height = `${Math.min(512, HEAD + ROW * rows.length + 8)}px`;
  }

  function fit(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    let n = Math.max(1, Math.floor(text.length * room /
      context.measureText(text).width) - 1);
    return "…" + text.slice(text.length - n);
  }

  function drawCell(context, x, y, w, p) {
    const gap = cell > 7 ? 1 : 0;
    if (p.level !== undefined) {
      context.fillStyle = paints.get(`--${two ? "h" : "m"}${p.level}`);
      context.fillRect(x, y + 1, w - gap, ROW - 2);
      return;
    }
    context.fillStyle = paints.get(w < 6 ? "--none" : "--none-tint");
    context.fillRect(x, y + 1, w - gap, ROW - 2);
    if (w < 6) return;
    context.strokeStyle = paints.get("--none");
    context.lineWidth = 1.6;
    context.beginPath();
    const [cx, cy] = [x + (w - gap) / 2, y + ROW / 2];
    const r = Math.min(4, w / 2 - 1.5);
    if (p.mark !== "b") {
      context.moveTo(cx - r, cy + r);
      context.lineTo(cx + r, cy - r);
    }
    if (p.mark !== "a") {
      context.moveTo(cx - r, cy - r);
      context.lineTo(cx + r, cy + r);
    }
    context.stroke();
  }

  function draw() {
    const context = canvas.getContext("2d");
    const dots = window.devicePixelRatio || 1;
    const [wide, tall] = [box.clientWidth, box.clientHeight];
    if (!wide) return;
    paints = new Map(["--none", "--none-tint", "--card", "--text", "--dim",
      "--accent"].concat([0, 1, 2, 3, 4, 5, 6, 7].flatMap((i) =>
      [`--h${i}`, `--m${i}`])).map((n) => [n, colour(n)]));
    canvas.width = wide * dots;
    canvas.height = tall * dots;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${tall}px`;
    context.setTransform(dots, 0, 0, dots, 0, 0);
    context.fillStyle = paints.get("--card");
    context.fillRect(0, 0, wide, tall);
    const first = Math.max(0, Math.floor(box.scrollTop / ROW));
    const last = Math.min(rows.length, first + Math.ceil(tall / ROW) + 1);
    context.font = "12px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'," +
      " monospace";
    context.textBaseline = "middle";
    for (let i = first; i < last; i++) {
      const y = HEAD + i * ROW - box.scrollTop;
      rows[i].cells.forEach((c, j) => {
        const x = labels + j * cell - box.scrollLeft;
        const p = c === null ? null : o.paint(c);
        if (p && x + cell > labels && x < wide)
          drawCell(context, x, y, cell, p);
      });
      context.fillStyle = paints.get("--card");
      context.fillRect(0, y, labels - 4, ROW);
      context.fillStyle = paints.get(
        rows[i].object === chosen.object ? "--accent" : "--text");
      context.fillText(fit(context, rows[i].name, labels - 18), 10,
        y + ROW / 2 + 1);
    }
    if (at) {
      context.strokeStyle = paints.get("--text");
      context.lineWidth = 2;
      context.strokeRect(labels + at[1] * cell - box.scrollLeft - 1,
        HEAD + at[0] * ROW - box.scrollTop, cell + 1, ROW);
    }
    context.fillStyle = paints.get("--card");
    context.fillRect(0, 0, wide, HEAD - 2);
    context.fillStyle = paints.get("--dim");
    context.fillText("iteration", 10, HEAD / 2);
    context.textAlign = "center";
    const each = Math.max(1, Math.ceil(64 / cell));
    for (let j = 0; j < columnCount; j += each) {
      const x = labels + (j + 0.5) * cell - box.scrollLeft;
      if (x > labels) context.fillText(
        whole(firstColumn + j * columnWidth), x, HEAD / 2);
    }
    context.textAlign = "start";
  }

  function go(row, column) {
    at = [Math.max(0, Math.min(rows.length - 1, row)),
      Math.max(0, Math.min(columnCount - 1, column))];
    const r = rows[at[0]];
    say.textContent = `${r.name}, iteration ${columnName(at[1])}: ` +
      o.tell(r.cells[at[1]]);
  }

  function under(e) {
    const r = box.getBoundingClientRect();
    const row = Math.floor((e.clientY - r.top + box.scrollTop - HEAD) / ROW);
    const column = Math.floor(
      (e.clientX - r.left + box.scrollLeft - labels) / cell);
    return row >= 0 && row < rows.length && e.clientY - r.top > HEAD
      ? [row, column] : null;
  }

  function redraw() {
    sizes();
    draw();
  }

  box.addEventListener("scroll", draw);
  box.addEventListener("pointermove", (e) => {
    const hit = under(e);
    if (hit && hit[1] >= 0 && hit[1] < columnCount) go(...hit);
    draw();
  });
  box.addEventListener("click", (e) => {
    const hit = under(e);
    if (hit && rows[hit[0]].object !== undefined)
      choose(rows[hit[0]].object, "map");
  });
  box.addEventListener("keydown", (e) => {
    const [r, c] = at || [-1, 0];
    const to = { ArrowDown: [r + 1, c], ArrowUp: [r - 1, c],
      ArrowRight: [Math.max(r, 0), c + 1], ArrowLeft: [Math.max(r, 0), c - 1],
      Home: [Math.max(r, 0), 0], End: [Math.max(r, 0), columnCount],
      PageDown: [r + 20, c], PageUp: [r - 20, c] }[e.key];
    if (e.key === "Enter" && at && rows[at[0]].object !== undefined)
      choose(rows[at[0]].object, "map");
    else if (!to) return;
    else {
      go(...to);
      const y = at[0] * ROW;
      if (y < box.scrollTop) box.scrollTop = y;
      if (y + HEAD + ROW > box.scrollTop + box.clientHeight)
        box.scrollTop = y + HEAD + ROW - box.clientHeight;
      const x = at[1] * cell;
      if (x < box.scrollLeft) box.scrollLeft = x;
      if (x + labels + cell > box.scrollLeft + box.clientWidth)
        box.scrollLeft = x + labels + cell - box.clientWidth;
      draw();
    }
    e.preventDefault();
  });
  chosen.listeners.push(draw);
  document.addEventListener("theme", draw);
  new ResizeObserver(redraw).observe(box);
  return {
    element: el("div", {}, box, say,
      later("As a table", () => mapTable(o, rows))),
    show(other) {
      rows = other;
      at = null;
      redraw();
    },
  };
}
