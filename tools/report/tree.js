/* The tree of modules, with what each gave off at worst. */
const SHOWN_AT_ONCE = 400;
const COLUMN_PASSES = [1, 2, 3]; /* forward, backward, grad */

function buildTree() {
  const root = { name: "", path: "", children: [], by: new Map(), level: 0 };
  const child = (of, name, path) => {
    let c = of.by.get(name);
    if (!c) {
      c = { name, path, children: [], by: new Map(), up: of, object: null };
      of.by.set(name, c);
      of.children.push(c);
    }
    return c;
  };
  let base = root;
  if (rooted) {
    const o = objects.find((x) => !x.module && x.cls);
    base = child(root, o.cls, "");
    base.object = o;
  }
  for (const o of objects) {
    if (o.module) {
      let at = base;
      let path = "";
      for (const part of o.module.split(".")) {
        path = path ? `${path}.${part}` : part;
        at = child(at, part, path);
      }
      /* several objects of one path, as after a module was replaced */
      if (at.object) at = child(at, o.kind, o.module);
      at.object = o;
    } else if (!(rooted && o.cls)) {
      const c = child(root, o.name, o.name);
      c.object = o;
    }
  }
  return root;
}

/* The values of a node and of the worst in it: in a column of the maps, or
 * of the whole run where that is -1. */
function settle(node, depth, column) {
  node.depth = depth;
  node.own = {};
  node.inside = {};
  for (const p of COLUMN_PASSES) {
    const place = node.object && node.object.places[p];
    node.own[p] = !place ? null : column < 0 ? place.worst
      : place.row < 0 ? null : D.map[place.row][column];
    node.inside[p] = node.own[p];
  }
  for (const c of node.children) {
    settle(c, depth + 1, column);
    for (const p of COLUMN_PASSES)
      node.inside[p] = heavier(node.inside[p], c.inside[p]);
  }
}

/* Where the page begins to tell: the culprit, else what is off first. */
function startOf() {
  const at = two ? [D.culprit, D.first] : D.findings.map((f) => f.at);
  return at.find((p) => p && p.object >= 0);
}

function worstOf(values) {
  return COLUMN_PASSES.reduce((w, p) => heavier(w, values[p]), null);
}

function treeView() {
  const root = buildTree();
  const start = startOf();
  let column = start ? Math.floor((start.iteration - firstColumn) /
    columnWidth) : -1;
  settle(root, 0, column);
  const nodeOf = new Map();
  const open = new Set();
  const room = new Map();
  let active = null;
  let visible = [];
  let typed = "";
  let typedAt = 0;
  (function each(n) {
    if (n.object) nodeOf.set(n.object.i, n);
    n.children.forEach(each);
  })(root);
  const marked = new Map();
  const mark = (p, text) => {
    if (p && p.object >= 0 && !marked.has(p.object))
      marked.set(p.object, text);
  };
  if (two) {
    mark(D.culprit, "culprit");
    mark(D.first, "first");
  } else D.findings.forEach((f) => mark(f.at, f.kind));

  const tree = el("div", { class: "tree", role: "tree",
    "aria-label": "Modules", keydown: onKey });

  function words(n, values) {
    const parts = COLUMN_PASSES.filter((p) => values[p] !== null)
      .map((p) => `${PASSES[p]} ${value(values[p])}`);
    const own = n.object
      ? `, ${n.object.cls || "values"}, ${valueName} `
      : `, inside ${valueName} `;
    const tag = n.object && marked.get(n.object.i);
    return n.name + own + (parts.join(", ") || "none") +
      (tag ? `, ${tag}` : "");
  }

  function row(n, i, all) {
    if (n.more) {
      return el("div", { role: "treeitem", class: "node",
        "aria-level": n.depth, tabindex: n === active ? "0" : "-1",
        click: () => more(n) },
      el("span", { class: "label dim" }, n.name));
    }
    const folds = n.children.length > 0;
    const isOpen = open.has(n);
    const values = n.object ? n.own : n.inside;
    const inner = !n.object;
    const worst = worstOf(values);
    const hidden = folds && !isOpen &&
      weight(worstOf(n.inside)) > weight(worst);
    const tag = n.object && marked.get(n.object.i);
    const label = el("span", { class: "label" },
      el("span", { class: "twist", "aria-hidden": "true",
        click: (e) => {
          e.stopPropagation();
          toggle(n);
        } }, folds ? (isOpen ? "▼" : "▶") : ""),
      el("span", { class: "mono" }, n.name),
      tag ? el("span", { class: "tag bad" }, tag) : null,
      n.object && n.object.cls
        ? el("span", { class: "cls" }, n.object.cls) : null);
    label.style.setProperty("--depth", n.depth - 1);
    return el("div", {
      role: "treeitem", class: "node", "aria-level": n.depth,
      "aria-setsize": all, "aria-posinset": i + 1,
      "aria-expanded": folds ? String(isOpen) : null,
      "aria-selected": String(Boolean(n.object) &&
        n.object.i === chosen.object),
      "aria-label": words(n, values) +
        (hidden ? `, worse inside: ${value(worstOf(n.inside))}` : ""),
      tabindex: n === active ? "0" : "-1",
      title: n.path || n.name,
      click: () => {
        active = n;
        if (n.object) choose(n.object.i, "tree");
        else toggle(n);
        draw(true);
      },
      dblclick: () => folds && n.object && toggle(n),
    }, label,
    COLUMN_PASSES.map((p) => {
      const v = folds && !isOpen ? n.inside[p] : values[p];
      const cls = v === null ? "" : v === NONE ? " none" : ` l${level(v)}`;
      const other = inner || v !== n.own[p];
      return el("span", { class: `box${cls}${other && v !== null &&
        v !== NONE ? " inner" : ""}`, "aria-hidden": "true" },
      v === NONE ? "×" : "");
    }),
    el("span", { class: `num small${inner || hidden ? " inner" : ""}`,
      "aria-hidden": "true" },
    worst === null && !hidden ? ""
      : value(hidden ? worstOf(n.inside) : worst)));
  }

  function list(of, into) {
    const most = room.get(of) || SHOWN_AT_ONCE;
    of.children.slice(0, most).forEach((n, i) => {
      into.push([n, i, of.children.length]);
      if (open.has(n)) list(n, into);
    });
    if (of.children.length > most) {
      of.rest = of.rest || { more: true, of, up: of, children: [],
        depth: of.depth + 1 };
      of.rest.name = `${whole(of.children.length - most)} more …`;
      into.push([of.rest, most, of.children.length]);
    }
  }

  function draw(focus) {
    const rows = [];
    list(root, rows);
    visible = rows.map((r) => r[0]);
    if (!visible.includes(active)) active = visible[0] || null;
    const top = tree.scrollTop;
    tree.replaceChildren(...rows.map(([n, i, all]) => row(n, i, all)));
    tree.scrollTop = top;
    if (focus && active) {
      const e = tree.children[visible.indexOf(active)];
      e.focus({ preventScroll: true });
      show(e);
    }
  }

  /* Scrolls the tree, not the page. */
  function show(e) {
    const over = e.offsetTop - tree.offsetTop;
    if (over < tree.scrollTop) tree.scrollTop = over - 60;
    const end = over + e.offsetHeight;
    if (end > tree.scrollTop + tree.clientHeight)
      tree.scrollTop = end - tree.clientHeight + 60;
  }

  function more(n) {
    room.set(n.of, (room.get(n.of) || SHOWN_AT_ONCE) + SHOWN_AT_ONCE);
    draw(true);
  }

  function toggle(n) {
    if (!n.children.length) return;
    if (open.has(n)) open.delete(n);
    else open.add(n);
    draw(false);
  }

  function reveal(n) {
    for (let up = n.up; up && up !== root; up = up.up) open.add(up);
    const at = n.up.children.indexOf(n);
    if (at >= (room.get(n.up) || SHOWN_AT_ONCE))
      room.set(n.up, at + SHOWN_AT_ONCE);
  }

  function onKey(e) {
    const at = visible.indexOf(active);
    if (at < 0 || e.ctrlKey || e.metaKey || e.altKey) return;
    const n = active;
    let to = n;
    if (e.key === "ArrowDown") to = visible[at + 1] || n;
    else if (e.key === "ArrowUp") to = visible[at - 1] || n;
    else if (e.key === "Home") to = visible[0];
    else if (e.key === "End") to = visible[visible.length - 1];
    else if (e.key === "ArrowRight") {
      if (n.children.length && !open.has(n)) open.add(n);
      else if (n.children.length) to = n.children[0];
    } else if (e.key === "ArrowLeft") {
      if (open.has(n)) open.delete(n);
      else if (n.up !== root) to = n.up;
    } else if (e.key === "Enter" || e.key === " ") {
      if (n.more) more(n);
      else if (n.object) choose(n.object.i, "tree");
      else toggle(n);
    } else if (e.key === "*") {
      n.up.children.forEach((c) => c.children.length && open.add(c));
    } else if (e.key.length === 1) {
      const now = Date.now();
      typed = now - typedAt < 700 ? typed + e.key : e.key;
      typedAt = now;
      const ahead = visible.slice(at + (typed.length === 1 ? 1 : 0))
        .concat(visible.slice(0, at));
      to = ahead.find((v) =>
        v.name.toLowerCase().startsWith(typed.toLowerCase())) || n;
    } else return;
    e.preventDefault();
    active = to;
    draw(true);
  }

  const say = el("output", { class: "small" });
  const slider = el("input", { type: "range", min: "-1",
    max: String(columnCount - 1), step: "1",
    "aria-label": "Iteration of the tree; the first place is the whole run",
    input: () => {
      column = Number(slider.value);
      settle(root, 0, column);
      draw(false);
      tellColumn();
    } });
  slider.value = String(column);
  function tellColumn() {
    const text = column < 0 ? "worst of all iterations"
      : `iteration ${columnName(column)}`;
    say.textContent = text;
    slider.setAttribute("aria-valuetext", text);
  }
  tellColumn();

  const found = el("p", { class: "say", role: "status" });
  const search = el("input", { type: "search", placeholder: "Find a module",
    "aria-label": "Find a module", spellcheck: "false",
    input: () => {
      const text = search.value.trim().toLowerCase();
      const hits = text === "" ? [] : objects.filter((o) =>
        o.name.toLowerCase().includes(text) ||
        o.kind.toLowerCase().includes(text));
      hits.sort((a, b) => weight(worstOf(nodeOf.get(b.i).own)) -
        weight(worstOf(nodeOf.get(a.i).own)) || a.i - b.i);
      found.textContent = text === "" ? ""
        : hits.length === 0 ? "no module has that in its name"
          : `${many(hits.length, "module")}; shown is ${hits[0].name}`;
      if (hits.length) choose(hits[0].i, "search");
    } });

  chosen.listeners.push((object, from) => {
    const n = nodeOf.get(object);
    if (!n) return;
    active = n;
    if (from !== "tree") reveal(n);
    draw(false);
    const e = tree.children[visible.indexOf(n)];
    if (e) show(e);
  });
  if (root.children.length < 40)
    root.children.forEach((c) => c.children.length < 40 && open.add(c));
  draw(false);

  return el("div", { class: "aside" },
    el("div", { class: "row" }, search,
      columnCount > 1 ? el("label", { class: "slide" }, slider, say) : null),
    found,
    el("div", { class: "treebox" },
      el("div", { class: "treehead", "aria-hidden": "true" },
        el("span", {}, "module"), el("span", { title: "forward" }, "fwd"),
        el("span", { title: "backward" }, "bwd"),
        el("span", { title: "gradients of its parameters" }, "grad"),
        el("span", {}, two ? "error" : "RMS")),
      tree),
    legend(two ? "no number: NaN on one side, other shape or dtype"
      : "NaN or infinite"));
}
