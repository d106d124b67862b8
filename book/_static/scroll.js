// What is wider than its place scrolls sideways. Where more is hidden at a side, the style lets it fade there.
"use strict";

const WIDE =
  "article :is(.ap-figure, mjx-container[display], .ap-wide-formula, .pst-scrollable-table-container, .cell_output .output, pre)";

function noteHidden(place) {
  const hidden = Math.max(0, place.scrollWidth - place.clientWidth);
  place.toggleAttribute("data-wide", hidden > 1); // a pixel may be rounding
  place.style.setProperty("--ap-before", `${place.scrollLeft}px`);
  place.style.setProperty("--ap-after", `${Math.max(0, hidden - place.scrollLeft)}px`);
}

function markWideFormulas(article) {
  for (const formula of article.querySelectorAll("mjx-container:not([display])")) {
    const block = formula.closest("p, li, td, th, dt, dd, h1, h2, h3, h4, figcaption");
    if (block?.matches("td, th")) continue; // a table scrolls as a whole
    const wide = block?.clientWidth > 0 && formula.firstElementChild.offsetWidth > block.clientWidth;
    formula.classList.toggle("ap-wide-formula", wide);
  }
}

addEventListener("load", async () => {
  await window.MathJax?.startup?.promise; // the equations are set only then
  const article = document.querySelector("article");
  if (article) {
    markWideFormulas(article);
    addEventListener("resize", () => markWideFormulas(article));
  }
  const sizes = new ResizeObserver((changes) => changes.forEach((change) => noteHidden(change.target)));
  for (const place of document.querySelectorAll(WIDE)) {
    sizes.observe(place);
    place.addEventListener("scroll", () => noteHidden(place), { passive: true });
  }
});
