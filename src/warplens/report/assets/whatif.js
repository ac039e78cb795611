"use strict";
// The what-if panel: every choice was computed before the page was written; here it is only shown.
(() => {
  const { element, drawing, unbroken } = warplens;
  const percent = (share) => `${(100 * share).toFixed(3)}%`;

  const bar = (name, state) => {
    let x = 0;
    const words = state.parts.map(([title, , , time]) => `${title} ${time}`).join(", ");
    const svg = drawing("svg", { height: 22, role: "img", "aria-label": `${name}, ${state.step}: ${words}` });
    for (const [title, fill, share, time] of state.parts) {
      svg.append(drawing("rect", { x: percent(x), width: percent(share), height: 22, fill: `var(--${fill})` }, drawing("title", {}, `${title}: ${time}`)));
      x += share;
    }
    return element("div", { class: "bar" }, element("span", {}, name), svg, element("b", {}, state.step));
  };
  const swatch = (title, fill) => element("li", {},
    drawing("svg", { width: 10, height: 10, "aria-hidden": "true" }, drawing("rect", { width: 10, height: 10, rx: 2, fill: `var(--${fill})` })), title);
  const legend = (before, after) => {
    const times = new Map((after ?? before).parts.map(([title, , , time]) => [title, time]));
    return element("ul", { class: "parts" }, ...before.parts.map(([title, fill, , time]) => swatch(
      `${title} ${time}${after && times.get(title) !== time ? ` → ${times.get(title) ?? "none"}` : ""}`, fill)));
  };

  // --- one step, drawn: what was recorded above what the replay predicts, in one scale -----------------------------------
  const lanes = (drawn, name, words, step) => element("div", { class: "step", "data-step": name, "data-length-ns": drawn.lengths[name] },
    element("p", {}, unbroken(words)),
    ...step.lanes.map(([lane, pieces, numbers]) => {
      const paths = drawn.fills.map(() => "");
      let at = 0;
      for (let i = 0; i < numbers.length; i += 3) {
        at += numbers[i];
        paths[numbers[i + 2]] += `M${at} 0h${numbers[i + 1]}v12h-${numbers[i + 1]}z`;
        at += numbers[i + 1];
      }
      const svg = drawing("svg", { viewBox: `0 0 ${drawn.parts} 12`, preserveAspectRatio: "none", height: 14, role: "img", "aria-label": `${lane}: ${pieces} ${lane === "host" ? "calls" : "pieces of work"}` },
        drawing("rect", { width: step.width, height: 12, fill: "var(--track)" }));
      paths.forEach((d, number) => { if (d) svg.append(drawing("path", { d, fill: `var(--${drawn.fills[number]})` })); });
      return element("div", { class: "lane" }, element("span", {}, lane), svg);
    }));
  const picture = (drawn, steps, ids) => {
    const id = ids.length ? ids[0] : "now";
    return element("div", { class: "drawn" },
      lanes(drawn, "recorded", drawn.recorded, steps.recorded),
      ids.length > 1 ? element("p", {}, unbroken(drawn.pair)) : lanes(drawn, id, ids.length ? drawn.after[id] : drawn.now, steps[id]),
      element("ul", { class: "parts" }, ...drawn.calls.map(([title, fill]) => swatch(title, fill))),
      element("p", { class: "thinned" }, unbroken(drawn.thinned)));
  };

  const start = async (figure) => {
    const data = JSON.parse(document.getElementById(`${figure.id}-data`).textContent);
    const steps = data.drawn && await (await warplens.unpack(data.drawn.steps)).json();
    const timeline = (ids) => steps ? [picture(data.drawn, steps, ids)] : [];
    const stage = figure.querySelector(".stage");
    const boxes = data.remedies.map(({ id, title, action }) => {
      const box = element("input", { type: "checkbox", value: id });
      const gain = element("b", {}, data.changes[id].gain);
      return [box, element("label", {}, box, element("span", {}, action), gain, element("small", {}, title))];
    });
    const then = element("div", { "aria-live": "polite" });
    const chosen = () => boxes.map(([box]) => box).filter((box) => box.checked).map((box) => box.value);

    const show = () => {
      const ids = chosen();
      const change = data.changes[ids.join("+")];
      for (const [box] of boxes) {
        const with_ = data.remedies.map(({ id }) => id).filter((id) => ids.includes(id) || id === box.value).join("+");
        box.disabled = !box.checked && ids.length > 0 && !data.changes[with_]; // pairs and all were replayed
      }
      if (!change) {
        then.replaceChildren(element("p", { class: "then" }, unbroken(ids.length ? `Not predicted on this page: ${data.ask} ${ids.join(",")}` : data.now.text)), bar("now", data.now), legend(data.now), ...timeline([]));
        figure.removeAttribute("data-chosen");
        return;
      }
      figure.dataset.chosen = ids.join("+");
      figure.dataset.stepNs = change.step_ns;
      const code = data.remedies.filter(({ id }) => ids.includes(id)).map((remedy) => `# ${remedy.action}\n${remedy.code}`).join("\n\n");
      const copy = element("button", { type: "button", class: "quiet" }, "Copy");
      const pre = element("pre", { tabindex: 0, "aria-label": "What to change, and how to check it" }, `${code}\n\n# record again, then: did it work?\n${data.check}`);
      warplens.copies(copy, pre);
      then.replaceChildren(
        element("p", { class: "then" }, element("b", {}, `${change.gain} as fast: `), unbroken(change.text)),
        bar("now", data.now), bar("then", change), legend(data.now, change), ...timeline(ids), pre, copy,
      );
    };
    const all = data.remedies.map(({ id }) => id).join("+");
    const every = boxes.length > 2 && data.changes[all] ? [element("button", { type: "button", class: "quiet" }, "Check all")] : [];
    const legend_ = boxes.length > 1 ? `Check one remedy, or two${every.length ? ", or all" : ""}.` : "Check it.";
    const fieldset = element("fieldset", {}, element("legend", {}, legend_), ...boxes.map(([, label]) => label), ...every);
    fieldset.addEventListener("change", show);
    every[0]?.addEventListener("click", () => { for (const [box] of boxes) box.checked = true; show(); });
    stage.replaceChildren(fieldset, then);

    // #what-if/ID or #what-if/ID+ID checks them.
    const follow = () => {
      const [anchor, ids] = decodeURIComponent(location.hash.slice(1)).split("/");
      if (anchor === figure.dataset.anchor && ids && data.changes[ids]) {
        for (const [box] of boxes) box.checked = ids.split("+").includes(box.value);
      }
      show();
    };
    addEventListener("hashchange", follow);
    boxes[0][0].checked = true; // the first finding's: what the answer says
    follow();
    figure.dataset.state = "ready";
  };
  for (const figure of document.querySelectorAll("[data-view=whatif]")) start(figure);
})();
