// Barriers of a page, as axe names them: contrast, alternative texts, headings, landmarks, names, doubled identifiers.
"use strict";
const found = [];
const luminance = (c) => {
  const v = c.match(/[\d.]+/g).slice(0, 3).map((x) => +x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
};
const behind = (node) => {
  for (let n = node; n; n = n.parentElement) {
    const c = getComputedStyle(n).backgroundColor;
    if (c !== "rgba(0, 0, 0, 0)" && c !== "transparent") { return c; }
  }
  return "rgb(255, 255, 255)";
};
const ratio = (a, b) => {
  const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
};
// Grid lines are faint on purpose: the marks are what has to be told from the paper.
const probe = document.createElement("i");
probe.style.color = "var(--line)";
document.body.append(probe);
const grid = new Set([getComputedStyle(probe).color]);
probe.remove();
for (const node of document.body.querySelectorAll("*")) {
  const style = getComputedStyle(node);
  const words = [...node.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent.trim()).join("");
  const isDrawn = node.ownerSVGElement !== null && node.ownerSVGElement !== undefined;
  if (words && node.tagName !== "SCRIPT") {
    const colour = isDrawn ? style.fill : style.color;
    if (ratio(colour, behind(node)) < 4.5) { found.push(`color-contrast: ${node.tagName} ${words.slice(0, 30)}`); }
  }
  const isMark = isDrawn && node.closest("[clip-path]") && !node.closest("defs") && node.matches("path,use");
  if (isMark && !grid.has(style.stroke) && style.fillOpacity === "1" && style.opacity === "1" && style.strokeOpacity === "1") {
    const colour = style.fill === "none" ? style.stroke : style.fill;
    if (ratio(colour, behind(node)) < 3) { found.push(`non-text contrast: ${node.tagName} ${colour}`); }
  }
}
for (const node of document.querySelectorAll("img:not([alt])")) { found.push(`image-alt: ${node.src}`); }
for (const node of document.querySelectorAll("svg:not([aria-hidden=true])")) {
  if (node.getAttribute("role") !== "img" || (node.getAttribute("aria-label") || "").length < 20) { found.push("svg-img-alt"); }
}
const heads = [...document.querySelectorAll("h1,h2,h3,h4")].map((h) => +h.tagName[1]);
if (heads.filter((h) => h === 1).length !== 1 || heads[0] !== 1) { found.push(`page-has-heading-one: ${heads}`); }
heads.forEach((h, k) => { if (k && h > heads[k - 1] + 1) { found.push(`heading-order: ${heads[k - 1]} then ${h}`); } });
if (document.querySelectorAll("main").length !== 1) { found.push("landmark-one-main"); }
if (!document.documentElement.lang) { found.push("html-has-lang"); }
if (!document.title) { found.push("document-title"); }
const ids = [...document.querySelectorAll("[id]")].map((n) => n.id);
ids.filter((id, k) => ids.indexOf(id) !== k).forEach((id) => found.push(`duplicate-id: ${id}`));
for (const node of document.querySelectorAll("th")) { if (!node.scope) { found.push(`th scope: ${node.textContent}`); } }
for (const node of document.querySelectorAll(".scroll,.long")) {
  const over = node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1;
  if (over && node.tabIndex < 0) { found.push("scrollable-region-focusable"); }
}
for (const node of document.querySelectorAll("progress,input,button,a")) {
  const name = node.getAttribute("aria-label") || node.textContent.trim() || (node.labels && node.labels.length);
  if (!name) { found.push(`name: ${node.tagName}`); }
}
return found;
