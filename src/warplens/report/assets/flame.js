"use strict";
// Icicles: trees whose widths are GPU time. Every box is a button that says its time and its share; a press zooms in.
(() => {
  const THINNEST = 0.0012; // of the width shown; what is narrower cannot be pressed
  const LINE = 21;

  const { element, count, duration, share, factor, exact, time } = warplens;

  // Adds to a view what drawing needs: children, depth, and of a difference the time on either side.
  const prepare = (view) => {
    const compares = Boolean(view.before);
    const root = { name: "all GPU work", children: [], depth: 0, total: 0, count: 0, before: 0, after: 0 };
    const nodes = view.nodes.map(([, name, fill, total, count, full], number) => ({
      number, name, fill: view.fills[fill], total, count, full, children: [],
      before: compares ? view.before[number] : 0, after: compares ? view.after[number] : 0,
    }));
    view.nodes.forEach(([parent], number) => {
      const above = parent < 0 ? root : nodes[parent];
      nodes[number].parent = above;
      nodes[number].depth = above.depth + 1;
      above.children.push(nodes[number]);
      if (above === root) for (const key of ["total", "count", "before", "after"]) root[key] += nodes[number][key];
    });
    return { ...view, root, nodes, compares };
  };

  const start = (figure) => {
    const views = JSON.parse(document.getElementById(`${figure.id}-data`).textContent).views.map(prepare);
    const stage = figure.querySelector(".stage");
    const bar = element("div", { class: "tools" });
    const way = element("div", { class: "way" });
    const board = element("div", { class: "board", role: "tree", "aria-label": stage.dataset.alt });
    const said = element("p", { class: "said", "aria-live": "polite" });
    const find = element("input", { type: "search", placeholder: "Search names", "aria-label": "Search names in the icicle", spellcheck: "false", autocomplete: "off" });
    const found = element("span", { class: "found", "aria-live": "polite" });
    let view = views[0];
    let top = view.root;
    let side = "after"; // of a difference, whose widths are shown
    let boxes = [];

    const value = (node) => (view.compares ? node[side] : node.total);
    const inWords = (node) => {
      const parts = [node.full ?? node.name];
      if (view.compares) {
        const change = node.after - node.before;
        const times = node.before ? `, ${factor(node.after / node.before)}` : "";
        parts.push(`${exact(node.before)} before, ${exact(node.after)} after: ${change < 0 ? "−" : "+"}${duration(Math.abs(change))} a step${times}`);
      } else {
        parts.push(time(node.total));
        if (view.steps > 1) parts.push(`${duration(node.total / view.steps)} a step`);
        parts.push(`${count(node.count)} ${node.count === 1 ? "piece" : "pieces"} of work`);
      }
      parts.push(`${share(value(node) / (value(view.root) || 1))} of all`);
      if (top !== view.root) parts.push(`${share(value(node) / (value(top) || 1))} of what is shown`);
      return parts.join(" · ");
    };

    // Red takes longer, blue less; how strongly, by the change as a share of the larger whole.
    const tint = (node) => {
      const whole = Math.max(view.root.before, view.root.after) || 1;
      const change = (node.after - node.before) / whole;
      if (Math.abs(change) < 0.0005) return "var(--track)";
      const strength = Math.min(100, 22 + 78 * Math.sqrt(Math.abs(change) * 4));
      return `color-mix(in oklab, var(${change > 0 ? "--idle-3" : "--gemm"}) ${strength.toFixed(0)}%, var(--track))`;
    };

    const draw = () => {
      board.replaceChildren();
      boxes = [];
      const wanted = find.value.trim().toLowerCase();
      const fits = (node) => wanted && (node.full ?? node.name).toLowerCase().includes(wanted);
      const whole = value(top) || 1;
      let deepest = 0, matching = 0;
      const place = (node, left, within) => {
        const part = value(node) / whole;
        const hit = fits(node);
        if (hit && !within) matching += value(node);
        if (part >= THINNEST || node === top) {
          const depth = node.depth - top.depth;
          deepest = Math.max(deepest, depth);
          const text = part > 0.035 ? `${node.name} ${share(value(node) / (value(view.root) || 1))}` : part > 0.012 ? node.name : "";
          const box = element("button", { type: "button", role: "treeitem", "aria-label": inWords(node), "aria-level": String(depth + 1), tabindex: node === top ? "0" : "-1" }, text);
          box.style.left = `${100 * left}%`;
          box.style.width = `${100 * part}%`;
          box.style.top = `${depth * LINE}px`;
          box.dataset.fill = node.fill ?? "";
          if (view.compares) box.style.background = node === top && top === view.root ? "" : tint(node);
          else if (node.fill) box.style.setProperty("--fill", `var(--${node.fill})`);
          if (wanted) box.classList.add(hit ? "hit" : "miss");
          box.node = node;
          boxes.push(box);
        }
        let at = left;
        for (const child of [...node.children].sort((a, b) => value(b) - value(a))) {
          const wide = value(child) / whole;
          if (wide >= THINNEST || wanted) place(child, at, within || hit);
          at += wide;
        }
      };
      place(top, 0, false);
      board.append(...boxes);
      board.style.height = `${(deepest + 1) * LINE}px`;
      found.textContent = wanted ? `${share(matching / (value(view.root) || 1))} of all: ${duration(matching)}${view.compares ? " a step" : ""}` : "";
      const steps = [];
      for (let node = top; node; node = node.parent) steps.unshift(node);
      way.replaceChildren(...steps.map((node) => {
        const button = element("button", { type: "button" }, node.name);
        button.addEventListener("click", () => zoom(node));
        return button;
      }));
      said.textContent = inWords(top);
      figure.dataset.sum = String(value(view.root));
      figure.dataset.shown = view.id;
    };
    const zoom = (node, focus = false) => {
      top = node;
      draw();
      if (focus) boxes[0].focus();
    };
    const boxOf = (target) => target.closest?.("button[role=treeitem]");
    board.addEventListener("click", (event) => {
      const box = boxOf(event.target);
      if (box) zoom(box.node === top && top.parent ? top.parent : box.node, true);
    });
    for (const kind of ["pointerover", "focusin"]) {
      board.addEventListener(kind, (event) => { const box = boxOf(event.target); if (box) said.textContent = inWords(box.node); });
    }
    board.addEventListener("pointerleave", () => { said.textContent = inWords(top); });
    board.addEventListener("keydown", (event) => {
      const box = boxOf(event.target);
      if (!box) return;
      const { node } = box;
      const shown = (each) => boxes.find((other) => other.node === each);
      const around = node === top ? [] : boxes.filter((other) => other.node.parent === node.parent);
      const next = {
        ArrowDown: () => boxes.find((other) => other.node.parent === node),
        ArrowUp: () => node !== top && shown(node.parent),
        ArrowRight: () => around[around.indexOf(box) + 1],
        ArrowLeft: () => around[around.indexOf(box) - 1],
      }[event.key];
      if (next) next()?.focus?.();
      else if (event.key === "Escape") zoom(top.parent ?? view.root, true);
      else return;
      event.preventDefault();
    });

    if (views.length > 1) {
      const choice = element("div", { class: "choice", role: "group", "aria-label": "What leads to kernels" });
      for (const each of views) {
        const button = element("button", { type: "button", class: "quiet", "aria-pressed": String(each === view) }, each.title);
        button.addEventListener("click", () => {
          view = each;
          for (const other of choice.children) other.setAttribute("aria-pressed", String(other === button));
          zoom(view.root);
        });
        choice.append(button);
      }
      bar.append(choice);
    }
    if (view.compares) {
      const button = element("button", { type: "button", class: "quiet" }, "Widths: after");
      button.addEventListener("click", () => {
        side = side === "after" ? "before" : "after";
        button.textContent = `Widths: ${side}`;
        draw();
      });
      bar.append(button);
    }
    bar.append(find, found);
    find.addEventListener("input", draw);
    find.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { find.value = ""; draw(); }
      if (event.key === "Enter") {
        const hit = boxes.find((box) => box.classList.contains("hit") && box.node !== top);
        if (hit) zoom(hit.node);
      }
    });
    stage.replaceChildren(bar, way, board, said);
    draw();
    figure.dataset.state = "ready";
  };

  for (const figure of document.querySelectorAll("[data-view=flame]")) {
    try { start(figure); } catch (error) {
      figure.dataset.state = "failed";
      figure.querySelector(".stage").textContent = "This view could not be drawn; its numbers are in the tables.";
      console.error(error);
    }
  }
})();
