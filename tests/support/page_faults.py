"""A script that says what a page lacks for those who see badly, use a screen reader or no mouse; [] if nothing.

Contrast of every text (WCAG AA: 4.5), headings in order, captions and scopes of tables, names of all that can be used.
"""

from __future__ import annotations

SCRIPT = r"""(() => {
  const found = [], shown = one => one.checkVisibility({ visibilityProperty: true });
  const rgb = text => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n.slice(0, 3), 1] : n; };
  const over = (top, ground) => [0, 1, 2].map(i => top[i] * top[3] + ground[i] * (1 - top[3])).concat(1);
  const ground = one => {
    const layers = [];
    for (; one; one = one.parentElement) {
      layers.push(rgb(getComputedStyle(one).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const linear = part => (part /= 255) <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  for (const one of document.body.querySelectorAll("*")) {
    const text = [...one.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join("").trim();
    if (!text || !shown(one) || one.closest("script, :disabled, .hidden, [aria-hidden=true]")) continue;
    const style = getComputedStyle(one), under = ground(one);
    const ink = over(rgb(one instanceof SVGElement ? style.fill : style.color), under);
    const [high, low] = [light(ink), light(under)].sort((a, b) => b - a), ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`contrast ${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
  }
  let level = 0;
  for (const heading of [...document.querySelectorAll("h1, h2, h3")].filter(shown)) {
    if (Number(heading.tagName[1]) > level + 1) found.push("a heading is skipped before " + heading.textContent);
    level = Number(heading.tagName[1]);
    if (!heading.textContent.trim()) found.push("an empty heading");
  }
  for (const table of [...document.querySelectorAll("table")].filter(shown)) {
    const title = table.caption?.textContent.trim() ?? "";
    if (!title) found.push("a table without a caption");
    if ([...table.tHead.querySelectorAll("th")].some(cell => cell.scope !== "col"))
      found.push("a column without scope: " + title);
    if ([...table.tBodies[0].rows].some(row => row.cells[0].tagName !== "TH" || row.cells[0].scope !== "row"))
      found.push("a row without a heading: " + title);
  }
  const used = "a, button, input, select, summary, section, dialog, nav, svg[role]";
  for (const one of [...document.querySelectorAll(used)].filter(shown)) {
    const by = document.getElementById(one.getAttribute("aria-labelledby"))?.textContent;
    const name = by ?? one.getAttribute("aria-label") ?? one.labels?.[0]?.textContent ?? one.textContent;
    if (!name.trim()) found.push("without a name: " + one.outerHTML.slice(0, 80));
  }
  for (const link of document.querySelectorAll("a[href^='#']"))
    if (!link.hash.includes("/") && !document.getElementById(link.hash.slice(1)))
      found.push("a link to nothing: " + link.hash);
  return [...new Set(found)];
})()"""
