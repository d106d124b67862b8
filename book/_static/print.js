// A page is printed in its light theme: the dark one's text and lines would hardly show on paper. Its proofs are open.
"use strict";

const root = document.documentElement;
let theme, opened;
addEventListener("beforeprint", () => {
  theme = root.dataset.theme;
  root.dataset.theme = "light";
  opened = document.querySelectorAll("details.sd-dropdown:not([open])");
  for (const proof of opened) proof.open = true;
});
addEventListener("afterprint", () => {
  root.dataset.theme = theme;
  for (const proof of opened) proof.open = false;
});
