"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  const { element } = warplens;
  const plain = (text) => text.replaceAll("\u00a0", " "); // as it is typed, and as programs read it

  // --- theme: colours are CSS variables, charts included, so that switching redraws nothing ---------------------------
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const themeButton = one("#warplens-theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const nameTheme = () => {
    themeButton.textContent = isDark() ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
  };
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("warplens-theme", root.dataset.theme); } catch { /* not kept, then */ }
    nameTheme();
  });
  system.addEventListener("change", nameTheme);
  nameTheme();

  // --- rooms: one is shown at a time; the address says which (#room/budget), or names something inside one ------------
  const rooms = all(".room");
  const links = all(".rooms a");
  const chooser = one("#warplens-part");
  const firstOf = (part) => rooms.find((room) => room.dataset.part === part);
  const arrived = new Set(); // rooms whose charts are drawn
  const enter = (wanted) => {
    // The comparison of several profiles has the answer of one of them below it.
    const front = rooms.filter((room) => !room.dataset.part);
    const part = wanted.dataset.part ?? chooser?.value;
    // The answer on a run of ranks stands alone.
    const atFront = chooser && !front[0]?.classList.contains("answer") && (front.includes(wanted) || wanted.classList.contains("answer"));
    const shown = new Set(atFront ? [front.includes(wanted) ? wanted : front[0], firstOf(part)] : [wanted]);
    for (const room of rooms) {
      if (shown.has(room)) room.hidden = false;
      else room.hidden = "until-found";
      // Older browsers know `hidden` alone; either way nothing of a hidden room can be reached by tabbing.
      room.classList.toggle("away", !shown.has(room));
      // Paper gets the answer of every profile, and the rooms of the one that is chosen.
      room.classList.toggle("unprinted", Boolean(room.dataset.part) && room.dataset.part !== part && !room.classList.contains("answer"));
    }
    if (chooser && part) {
      chooser.value = part;
      for (const list of all(".rooms ol[data-part]")) list.hidden = list.dataset.part !== part;
    }
    for (const link of links) {
      if (link.hash === `#${wanted.id}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const strip = one(".rooms");
    const link = one("[aria-current]", strip);
    if (link && strip.scrollWidth > strip.clientWidth) strip.scrollLeft = link.offsetLeft - (strip.clientWidth - link.offsetWidth) / 2;
    for (const room of shown) {
      if (arrived.has(room)) continue;
      arrived.add(room);
      room.dispatchEvent(new CustomEvent("warplens-arrive", { bubbles: true }));
    }
  };
  const follow = () => {
    const name = decodeURIComponent(location.hash.slice(1));
    // `timeline/START-END` names a span, `what-if/ID` a choice: the view goes there by itself.
    const target = document.getElementById(`room/${name}`) ?? document.getElementById(name) ?? document.getElementById(name.replace(/\/[^/]*$/, ""));
    const room = target?.closest(".room") ?? rooms[0];
    enter(room);
    for (let at = target; at; at = at.parentElement) if (at instanceof HTMLDetailsElement) at.open = true;
    if (!target || (target === room && !chooser)) scrollTo(0, 0);
    else target.scrollIntoView();
  };
  addEventListener("hashchange", follow);
  for (const room of rooms) room.addEventListener("beforematch", () => enter(room));
  chooser?.addEventListener("change", () => { location.hash = firstOf(chooser.value).id; });

  for (const button of all(".copy")) {
    button.hidden = false;
    warplens.copies(button, one("code", button.parentElement));
  }

  // What is packed away: rows that no table shows at first, with their places, and what the charts draw.
  const packed = async (id) => {
    const holder = document.getElementById(id);
    return holder ? (await warplens.unpack(JSON.parse(holder.textContent))).json() : {};
  };
  const folded = packed("warplens-rows");

  // --- tables ----------------------------------------------------------------------------------------------------------
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.v === undefined) return cell.textContent.trim().toLowerCase();
    return cell.dataset.v === "" ? null : Number(cell.dataset.v);
  };
  const compare = (a, b) => {
    // What was not recorded stands last, whichever way the rest is sorted.
    if (typeof a === "string") return a.localeCompare(b);
    return a - b;
  };
  const sorted = (rows, column, descending) => {
    const keyed = rows.map((row) => [row, valueOf(row, column)]);
    keyed.sort(([, a], [, b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return descending ? compare(b, a) : compare(a, b);
    });
    return keyed.map(([row]) => row);
  };

  const wholeTables = new WeakMap(); // box of a table → brings its other rows, once
  const setUpTable = (box) => {
    const table = one("table", box);
    if (!table) return;
    const body = table.tBodies[0];
    const isTree = box.classList.contains("tree");
    const limit = Number(box.dataset.limit);
    const original = [...body.rows];
    const text = new Map();
    const input = one("input[type=search]", box);
    const moreButton = one("button.all", box);
    const counter = one(".count", box);
    let order = original;
    let showAll = false;

    // Trees: rows come in pre-order, so depth alone tells who is whose child.
    const parent = new Map();
    const children = new Map();
    const whole = async () => {
      const rest = (await folded)[box.id] ?? [];
      const made = document.createElement("tbody");
      made.innerHTML = rest.map(([, row]) => row).join(""); // rows as the page's own template wrote and escaped them
      const rows = [...made.rows];
      rest.forEach(([place], number) => {
        rows[number].hidden = true;
        original.splice(place, 0, rows[number]);
      });
      body.append(...original);
      const path = [];
      for (const row of original) {
        text.set(row, plain(row.cells[0].textContent.concat(" ", row.textContent)).toLowerCase());
        if (!isTree) continue;
        const depth = Number(row.dataset.depth);
        path.length = depth;
        const above = path[depth - 1] ?? null;
        parent.set(row, above);
        children.set(above, [...(children.get(above) ?? []), row]);
        path[depth] = row;
      }
    };
    let completed = null;
    const complete = () => (completed ??= whole());
    wholeTables.set(box, complete);
    const foldOf = (row) => one("button.fold", row);
    const isOpen = (row) => foldOf(row)?.getAttribute("aria-expanded") === "true";
    const unfolded = (row) => {
      for (let above = parent.get(row); above; above = parent.get(above)) if (!isOpen(above)) return false;
      return true;
    };

    const show = () => {
      const wanted = input?.value.trim().toLowerCase() ?? "";
      let shown = 0;
      if (wanted && isTree) {
        const kept = new Set();
        for (const row of order) {
          if (text.get(row).includes(wanted)) for (let at = row; at; at = parent.get(at)) kept.add(at);
        }
        for (const row of order) shown += (row.hidden = !kept.has(row)) ? 0 : 1;
      } else if (isTree) {
        for (const row of order) shown += (row.hidden = !unfolded(row)) ? 0 : 1;
      } else {
        let matching = 0;
        for (const row of order) {
          const fits = !wanted || text.get(row).includes(wanted);
          if (fits) matching += 1;
          row.hidden = !fits || (!wanted && !showAll && matching > limit);
          shown += row.hidden ? 0 : 1;
        }
      }
      const rows = `${order.length} ${order.length === 1 ? "row" : "rows"}`;
      counter.textContent = shown === order.length ? rows : `${shown} of ${rows}`;
    };

    const arrange = (column, descending) => {
      if (column === null) order = original;
      else if (!isTree) order = sorted(original, column, descending);
      else {
        order = [];
        const add = (row) => {
          order.push(row);
          for (const child of sorted(children.get(row) ?? [], column, descending)) add(child);
        };
        for (const top of sorted(children.get(null) ?? [], column, descending)) add(top);
      }
      body.append(...order);
      show();
    };

    all("thead th", table).forEach((head, column) => {
      const button = element("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      const numeric = head.classList.contains("num");
      button.addEventListener("click", async () => {
        await complete();
        const now = head.getAttribute("aria-sort");
        const first = numeric ? "descending" : "ascending";
        const second = numeric ? "ascending" : "descending";
        const next = now === "none" ? first : now === first ? second : "none";
        for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", next);
        arrange(next === "none" ? null : column, next === "descending");
      });
    });

    if (input) {
      input.closest("label").hidden = false;
      input.addEventListener("input", () => complete().then(show));
    }
    if (moreButton) {
      moreButton.hidden = false;
      moreButton.addEventListener("click", async () => {
        await complete();
        showAll = !showAll;
        if (isTree) for (const row of original) foldOf(row)?.setAttribute("aria-expanded", String(showAll));
        moreButton.textContent = isTree ? (showAll ? "Collapse all" : "Expand all") : (showAll ? "Show fewer" : "Show all");
        show();
      });
    }
    body.addEventListener("click", async (event) => {
      const fold = event.target.closest("button.fold");
      if (!fold) return;
      await complete();
      fold.setAttribute("aria-expanded", String(fold.getAttribute("aria-expanded") !== "true"));
      show();
    });
  };
  all(".table").forEach(setUpTable);

  // What columns mean stands in their headings; full names stand behind short ones, with a button that copies them.
  for (const details of all("details.columns")) {
    details.hidden = false;
    details.addEventListener("toggle", () => {
      const entries = all("thead th[title]", details.closest(".table")).map((head) =>
        element("div", {}, element("dt", {}, one(".title", head).textContent), element("dd", {}, head.title)));
      details.append(element("dl", {}, ...entries));
    }, { once: true });
  }
  document.addEventListener("mouseover", (event) => {
    const summary = event.target.closest?.("details.name > summary");
    if (summary) summary.title = one("code", summary.parentElement).textContent;
  });
  document.addEventListener("toggle", (event) => {
    const details = event.target;
    if (!(details instanceof HTMLDetailsElement) || !details.matches("details.name") || one("button", details)) return;
    const button = element("button", { type: "button", class: "quiet" }, "Copy");
    warplens.copies(button, one("code", details));
    details.append(button);
  }, true);

  // --- charts ----------------------------------------------------------------------------------------------------------
  const tip = one("#warplens-tip");
  // Vega hands over titles and values; they are set as text, never as markup. Titles that begin with "_" head the box.
  const showTip = (_handler, event, _item, value) => {
    if (value === null || value === undefined || value === "") { tip.hidden = true; return; }
    tip.replaceChildren();
    const list = element("dl");
    for (const [title, content] of Object.entries(value)) {
      if (content === "" || content === "null" || content === "undefined") continue;
      if (title.startsWith("_")) tip.append(element("p", {}, content));
      else list.append(element("dt", {}, title), element("dd", {}, content));
    }
    if (list.childElementCount) tip.append(list);
    tip.hidden = false;
    const gap = 14;
    const box = tip.getBoundingClientRect();
    const left = Math.max(gap, Math.min(event.clientX + gap, innerWidth - box.width - gap));
    const below = event.clientY + gap;
    tip.style.left = `${left}px`;
    tip.style.top = `${below + box.height < innerHeight ? below : Math.max(gap, event.clientY - box.height - gap)}px`;
  };
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  const offer = (blob, name) => {
    const link = element("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  // A saved chart leaves the page's variables behind: they are replaced by the colours of the moment.
  const save = async (figure, kind) => {
    const svg = one("svg", figure).cloneNode(true);
    svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    const style = getComputedStyle(figure);
    const text = svg.outerHTML.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    const blob = new Blob([text], { type: "image/svg+xml" });
    if (kind === "SVG") { offer(blob, `${figure.id}.svg`); return; }
    const image = new Image();
    image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * image.width;
    canvas.height = 2 * image.height;
    const context = canvas.getContext("2d");
    context.fillStyle = style.backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((picture) => offer(picture, `${figure.id}.png`));
  };

  const field = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const asText = (text) => field(/^[=+\-@]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text);
  // What a chart plots: numbers by the titles of their axes, and what its tooltips say; a part for each set of marks.
  const dataOf = (spec) => {
    const parts = new Map();
    for (const layer of spec.layer) {
      if (!Array.isArray(layer.encoding?.tooltip)) continue;
      const data = layer.data ?? spec.data ?? {}; // what all layers share stands above them
      const values = data.values ?? spec.datasets?.[data.name] ?? [];
      const columns = ["x", "y"].map((axis) => layer.encoding[axis]).filter((axis) => axis?.field && axis.title).map((axis) => [axis.title, axis.field]);
      columns.push(...layer.encoding.tooltip.map((item) => [item.title.replace(/^_/, ""), item.field]));
      const rows = values.map((mark) => columns.map(([, name]) => asText(String(mark[name] ?? ""))).join(","));
      parts.set(JSON.stringify(values), [columns.map(([title]) => field(title)).join(","), ...rows].join("\r\n"));
    }
    return [...parts.values()].join("\r\n\r\n");
  };

  // Exact values and full names; what a spreadsheet would take for a formula stays text.
  const csvOf = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => {
    const bound = cell.textContent.trim().startsWith(">"); // no value, but what it exceeds
    const text = plain(((bound ? undefined : cell.dataset.v) ?? (one("code, .title", cell) ?? cell).textContent).trim());
    return field(cell.dataset.v === undefined && /^[=+\-@]/.test(text) ? `'${text}` : text);
  }).join(",")).join("\r\n");
  for (const button of all("button.csv")) {
    button.hidden = false;
    const box = button.closest(".table");
    button.addEventListener("click", async () => {
      await wholeTables.get(box)();
      offer(new Blob([csvOf(one("table", box))], { type: "text/csv" }), `${box.id}.csv`);
    });
  }

  const charts = packed("warplens-charts");
  const options = {
    mode: "vega-lite",
    renderer: "svg",
    actions: false,
    defaultStyle: false,
    tooltip: showTip,
    ast: true, // expressions are interpreted, not compiled: the page's policy forbids eval
    loader: { load: () => Promise.reject(new Error("this page loads nothing")) },
  };
  const embed = async (place) => {
    const label = place.getAttribute("aria-label");
    const { config, specs } = await charts;
    await vegaEmbed(place, specs[place.dataset.chart], { ...options, config });
    place.setAttribute("aria-label", label);
  };
  const draw = async (place) => {
    await embed(place);
    const figure = place.closest("figure");
    for (const button of all("button.save", figure)) {
      button.hidden = false;
      button.addEventListener("click", async () => {
        if (button.textContent === "CSV") offer(new Blob([dataOf((await charts).specs[place.dataset.chart])], { type: "text/csv" }), `${figure.id}.csv`);
        else save(figure, button.textContent);
      });
    }
    for (const gestures of all(".gestures", figure)) {
      gestures.hidden = false;
      place.addEventListener("dblclick", () => embed(place));
      one("button", gestures).addEventListener("click", () => embed(place));
    }
  };
  const drawn = new Set();
  const drawIn = async (rooms) => {
    await folded;
    for (const place of rooms.flatMap((room) => all(".chart", room))) {
      if (drawn.has(place) || !place.clientWidth) continue; // in a folded part: drawn when that is opened
      drawn.add(place);
      try { await draw(place); } catch (error) {
        place.textContent = "This chart could not be drawn; its numbers are in the tables.";
        console.error(error);
      }
      await new Promise((resolve) => setTimeout(resolve)); // lets the page answer between two charts
    }
    root.dataset.charts = "drawn";
  };
  document.addEventListener("warplens-arrive", (event) => drawIn([event.target]));
  document.addEventListener("toggle", (event) => { if (event.target.open) { drawIn([event.target]); hint(); } }, true);
  addEventListener("beforeprint", () => {
    for (const fold of all("details.part, .cautions")) fold.open = true;
    drawIn(rooms.filter((room) => !room.classList.contains("unprinted")));
  });
  const hint = () => {
    for (const box of all(".scroll")) {
      if (box.clientWidth) box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth + 1;
    }
  };
  document.addEventListener("warplens-arrive", () => requestAnimationFrame(hint));
  addEventListener("resize", hint);
  follow();
})();
