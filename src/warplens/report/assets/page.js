"use strict";
// What the scripts of the page share: elements, what is packed in the page, buttons that copy, and how numbers are written.
const warplens = (() => {
  const filled = (made, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const element = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
  const drawing = (tag, attributes, ...children) => filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  // What the page holds deflated, as base64; a promise of a response, whose `json()` or `arrayBuffer()` it is.
  const unpack = async (text) => {
    const packed = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")));
  };

  // A press on the button copies the text of a node; where the clipboard is closed to the page, it is selected instead.
  const copies = (button, node) => button.addEventListener("click", async () => {
    getSelection().selectAllChildren(node);
    try {
      await navigator.clipboard.writeText(node.textContent);
      button.textContent = "Copied";
    } catch { button.textContent = "Selected"; }
  });

  // Numbers as report/text.py writes them: three significant digits with a unit, whole ones of the smallest unit in full.
  const count = (number) => number.toLocaleString("en-US");
  const digits = (size) => (size >= 99.95 ? count(Math.round(size)) : size.toFixed(size >= 9.995 ? 1 : 2));
  const scaled = (quantity, units) => {
    const size = Math.abs(quantity);
    // What rounds up to the next unit belongs there: "1.00 ms", not "1,000 µs".
    const [factor, unit] = units.findLast(([each], place) => !place || size >= each * 0.9995);
    const text = factor === 1 && Number.isInteger(size) ? count(size) : digits(size / factor);
    return `${quantity < 0 ? "−" : ""}${text} ${unit}`;
  };
  const duration = (ns) => scaled(ns, [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]]);
  const bytes = (size) => scaled(size, [[1, "B"], [1e3, "kB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"]]);
  const share = (part) => (part > 0 && part < 0.0005 ? "<0.1 %" : `${(100 * part).toFixed(1)} %`);
  const factor = (times) => `${digits(times)}×`;
  const exact = (ns) => `${count(Math.round(ns))} ns`;
  // A text whose numbers stay on one line with their units.
  const unbroken = (text) => text.replace(/(?<=\d) (?=%|[nµm]?s\b|[kMGTP]?i?B\b)/g, "\u00a0");
  // Both, where they differ.
  const time = (ns) => (Math.abs(ns) < 999.5 ? exact(ns) : `${exact(ns)} (${duration(ns)})`);

  return { element, drawing, unpack, copies, count, duration, bytes, share, factor, unbroken, exact, time };
})();
