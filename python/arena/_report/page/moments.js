// A page with two moments: inserts the selected one before anything is drawn.
"use strict";

(() => {
  const other = document.querySelector("template[id^=moment-]");
  if (!other) return; // only one moment
  const isChosen = () => location.hash === `#${other.id.slice("moment-".length)}`;
  const shown = isChosen();
  if (shown) {
    for (const old of document.querySelectorAll("body > header, body > main, body > #data")) old.remove();
    other.before(other.content);
  }
  addEventListener("hashchange", () => isChosen() !== shown && location.reload());
})();
