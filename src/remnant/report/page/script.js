"use strict";
// Filters and the viewer. All texts are already on the page: nothing here makes HTML from strings.
(() => {
  const one = (id) => document.getElementById(id);
  const list = one("cards");
  if (!list) return;
  const cards = [...list.children];
  const first = list.classList.contains("cards") ? 10 : cards.length;
  let matching = cards;

  const filters = one("filters");
  const said = one("shown");
  const all = one("all");
  const whole = said.textContent;
  let limit = first;
  const draw = () => {
    for (const card of cards) card.hidden = true;
    matching.forEach((card, rank) => {
      card.hidden = false;
      card.classList.toggle("later", rank >= limit); // printed, but not on the screen yet
    });
    all.hidden = matching.length <= limit;
    all.textContent = `Show all ${matching.length}`;
  };
  filters.hidden = filters.children.length === 0;
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("change", () => {
    const wanted = [...filters.elements].filter((box) => box.value !== "");
    matching = cards.filter((card) => wanted.every((box) => card.dataset[box.name] === box.value));
    said.textContent = wanted.length ? `${matching.length} of ${cards.length} match.` : whole;
    draw();
  });
  all.addEventListener("click", () => {
    const next = matching[limit];
    limit = cards.length;
    draw();
    (next.querySelector("button, summary") ?? next).focus();
  });
  filters.reset();
  draw();

  const viewer = one("viewer");
  if (!viewer) return;
  const cut = one("cut");
  const wipe = viewer.querySelector(".wipe");
  const slide = () => wipe.style.setProperty("--cut", `${cut.value}%`);
  let current = null;

  const show = (card) => {
    current = card;
    const [original, found] = card.querySelectorAll(".pair img");
    one("below").src = found.src;
    one("below").alt = found.alt;
    one("above").src = original.src;
    one("above").alt = original.alt;
    one("viewer-title").textContent = card.querySelector(".caption code").textContent;
    const scores = card.querySelector(".scores").cloneNode(true);
    one("viewer-scores").replaceChildren(...scores.children);
  };
  const step = (by) => {
    const pairs = matching.filter((card) => card.querySelector("button.pair"));
    show(pairs[(pairs.indexOf(current) + by + pairs.length) % pairs.length]);
  };
  list.addEventListener("click", (event) => {
    const button = event.target.closest("button.pair");
    if (!button) return;
    show(button.closest(".card"));
    cut.value = 50;
    slide();
    viewer.showModal();
    cut.focus();
  });
  cut.addEventListener("input", slide);
  const drag = (event) => {
    if (!event.buttons) return;
    const box = wipe.getBoundingClientRect();
    cut.value = (100 * (event.clientX - box.left)) / box.width;
    slide();
  };
  wipe.addEventListener("pointerdown", drag);
  wipe.addEventListener("pointermove", drag);
  one("previous").addEventListener("click", () => step(-1));
  one("following").addEventListener("click", () => step(1));
  one("close").addEventListener("click", () => viewer.close());
  viewer.addEventListener("click", (event) => event.target === viewer && viewer.close());
  viewer.addEventListener("close", () => {
    if (current.classList.contains("later")) all.click();
    current.querySelector("button.pair").focus();
  });
})();
