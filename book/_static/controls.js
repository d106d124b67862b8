// What the theme and its parts leave undone for fingers and for keyboards.
"use strict";

// The theme takes the focus off a button that was used, so that its hint goes. Who came by keyboard keeps the place.
for (const button of document.querySelectorAll(".theme-switch-button, .search-button, .primary-toggle, .secondary-toggle")) {
  button.blur = () => button.matches(":focus-visible") || HTMLElement.prototype.blur.call(button);
}

// A menu that lies over the page closes when a place on this page has been chosen in it.
for (const menu of document.querySelectorAll("dialog")) {
  menu.addEventListener("click", (click) => click.target.closest('a[href^="#"]') && menu.close());
}

// The title of a folded solution opens it, all of it. Its link, to the exercise just above, would lead away.
for (const link of document.querySelectorAll(".dropdown.admonition > .admonition-title a")) {
  link.replaceWith(...link.childNodes);
}

// A formula in a sentence is no stop of the keyboard, unless it is wider than its place; a chapter has hundreds.
addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  for (const formula of document.querySelectorAll("mjx-container:not([display])")) formula.removeAttribute("tabindex");
});
