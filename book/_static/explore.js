// Interactive figures: show the frame that belongs to the sliders' values.
"use strict";

for (const figure of document.querySelectorAll(".ap-explore")) {
  const sliders = [...figure.querySelectorAll("input[type=range]")];
  const labels = sliders.map((slider) => figure.querySelector(`label[for="${slider.id}"]`).textContent);
  const texts = sliders.map((slider) => JSON.parse(slider.dataset.texts));
  const frames = figure.querySelector("template").content.children;
  const spoken = figure.querySelector(".ap-spoken");
  let timer;

  // Frames are stored with the last slider's values running fastest.
  const frameAt = (values) => frames[values.reduce((index, value, i) => index * texts[i].length + value, 0)];
  const addressAt = (values) => frameAt(values).getAttribute("src");
  const themeOf = (image) => (image.className === "only-dark" ? "#dark" : "");

  function prefetchNeighbours(values) {
    values.forEach((value, i) => {
      for (const near of [value - 1, value + 1]) {
        if (texts[i][near] !== undefined) new Image().src = addressAt(values.map((other, j) => (j === i ? near : other)));
      }
    });
  }

  function show() {
    const values = sliders.map((slider) => Number(slider.value));
    sliders.forEach((slider, i) => {
      const text = texts[i][values[i]];
      slider.setAttribute("aria-valuetext", text);
      slider.nextElementSibling.textContent = text;
    });
    for (const image of figure.querySelectorAll(":scope > img")) {
      image.alt = frameAt(values).alt;
      image.src = addressAt(values) + themeOf(image);
    }
    figure.querySelector(".ap-links a").href = addressAt(values);
    figure.querySelector(".ap-still span").textContent = values
      .map((value, i) => `${labels[i]} = ${texts[i][value]}`)
      .join(", ");
    clearTimeout(timer); // a screen reader hears of the frame where the slider rests, not of those it passes
    timer = setTimeout(() => (spoken.textContent = frameAt(values).alt), 500);
    prefetchNeighbours(values);
  }

  for (const slider of sliders) slider.addEventListener("input", show);
  figure.querySelector("fieldset").hidden = false;
}
