// A page of two moments: puts the chosen one in its place, before anything is drawn.
"use strict";

(() => {
  const other = document.querySelector("template[id^=moment-]");
  if (!other) return; // there is one moment only
  const isChosen = () => location.hash === `#${other.id.slice("moment-".length)}`;
  const shown = isChosen();
  if (shown) {
    for (const old of document.querySelectorAll("body > header, body > main, body > #data")) old.remove();
    other.before(other.content);
  }
  addEventListener("hashchange", () => isChosen() !== shown && location.reload());
})();
