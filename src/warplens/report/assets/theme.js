"use strict";
// Runs before the first paint, so that a page kept in the other theme does not flash.
(() => {
  try {
    const kept = localStorage.getItem("warplens-theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch { /* storage may be closed to local files; the system's theme is used then */ }
})();
