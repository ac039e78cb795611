"use strict";
// Runs before the first paint, so that a page kept in the other theme does not flash.
(() => {
  try {
    const kept = localStorage.getItem("warplens-theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch { /* storage may be closed to local files; the system's theme is used then */ }
})();
// What the page holds deflated, as base64; a promise of a response, whose `json()` or `arrayBuffer()` it is.
const warplensUnpack = async (text) => {
  const packed = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")));
};
