// Returns the accessibility faults of a page: contrast, labels and keyboard access.
(() => {
  const LEAST = 4.5;
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (...colours) => {
    for (const colour of colours) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (colour) => {
    const [red, green, blue] = colour.map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
  };
  const contrast = (a, b) => Math.max(light(a), light(b)) / Math.min(light(a), light(b));
  const excerpt = (element) => element.outerHTML.slice(0, 160);
  const visible = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });

  /** Background colours of an element and its ancestors, outermost first. */
  const grounds = (element) => {
    const found = [];
    for (let at = element; at; at = at.parentElement) found.unshift(getComputedStyle(at).backgroundColor);
    return ["white", ...found];
  };
  /** Effective opacity of an element: the product over itself and its ancestors. */
  const opacity = (element) => {
    let left = 1;
    for (let at = element; at; at = at.parentElement) left *= getComputedStyle(at).opacity;
    return left;
  };
  /** Background colours of a figure, under its cells. */
  const papers = (text) => [...text.closest(".plot")?.querySelectorAll(".bglayer .bg") ?? []]
    .map((paper) => getComputedStyle(paper))
    .flatMap(({ fill, fillOpacity }) => (fillOpacity === "0" ? [] : [fill]));
  /** Colour of the heat map behind the centre of a text; null if there is none. */
  const cell = (text) => {
    const box = text.getBoundingClientRect();
    for (const image of text.closest(".plot")?.querySelectorAll(".hm image") ?? []) {
      const frame = image.getBoundingClientRect();
      const x = (box.x + box.width / 2 - frame.x) / frame.width;
      const y = (box.y + box.height / 2 - frame.y) / frame.height;
      if (x <= 0 || x >= 1 || y <= 0 || y >= 1) continue;
      const loaded = pictures.get(image);
      const paper = document.createElement("canvas").getContext("2d");
      [paper.canvas.width, paper.canvas.height] = [loaded.naturalWidth, loaded.naturalHeight];
      paper.drawImage(loaded, 0, 0);
      const [r, g, b, alpha] = paper.getImageData(x * loaded.naturalWidth, y * loaded.naturalHeight, 1, 1).data;
      return alpha ? [r, g, b] : rgb(...grounds(text), ...papers(text));
    }
    return null;
  };
  const pictures = new Map();
  const load = (image) => new Promise((done) => {
    const loaded = new Image();
    pictures.set(image, loaded);
    loaded.onload = done;
    loaded.src = image.getAttribute("href") ?? image.getAttribute("xlink:href");
  });

  const faint = () => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const faults = [];
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || /^(SCRIPT|STYLE|OPTION)$/.test(element.tagName)) continue;
      if (!visible(element) || element.closest("noscript")) continue;
      const style = getComputedStyle(element);
      const isDrawn = element instanceof SVGElement;
      const ground = (isDrawn && cell(element)) || rgb(...grounds(element));
      const ink = isDrawn ? style.fill : style.color;
      const opaque = rgb(`rgb(${ground.join(" ")})`, ink);
      const left = opacity(element);
      const found = contrast(opaque.map((part, i) => left * part + (1 - left) * ground[i]), ground);
      if (found < LEAST) faults.push(`contrast ${found.toFixed(2)}: ${excerpt(element)}`);
    }
    return faults;
  };

  const unnamed = () => [...document.querySelectorAll("img, canvas, svg, [role=img], .drawing")]
    .filter((picture) => visible(picture) && !picture.closest("[aria-hidden=true], .modebar, noscript, #js-plotly-tester"))
    .filter((picture) => !picture.parentElement.closest("[role=img], button, [aria-label*=' ']"))
    .filter((picture) => !/\d/.test(picture.getAttribute("aria-label") ?? picture.alt ?? ""))
    .map((picture) => `no numbers in words: ${excerpt(picture)}`);

  const clickable = "a, button, summary, input, select, textarea, [onclick], .modebar-btn, .legendtoggle";
  // A link without href reports tabIndex 0 but cannot be reached with the keyboard.
  const focusable = "a[href], button, input, select, textarea, summary, [tabindex]";
  const unreachable = () => {
    const pointed = [...document.querySelectorAll("body *")]
      .filter((one) => getComputedStyle(one).cursor === "pointer");
    return [...new Set([...document.querySelectorAll(clickable), ...pointed])]
      .filter((one) => visible(one) && getComputedStyle(one).pointerEvents !== "none")
      .filter((one) => {
        for (let at = one; at; at = at.parentElement) {
          if (at.tabIndex >= 0 && at.matches(focusable) && !at.matches(".scroll")) return false;
        }
        // Among buttons navigated with arrow keys, the tab key reaches only one.
        if (one.closest("[tabindex='-1']")?.parentElement.querySelector("[tabindex='0']")) return false;
        return !one.closest("label")?.control;
      })
      .map((one) => `no key reaches: ${excerpt(one)}`);
  };

  // Screen readers ignore the contents of an image, so a button inside one cannot be found.
  const buried = () => [...document.querySelectorAll("[role=img] :is(button, [role=button], [tabindex='0'])")]
    .filter(visible)
    .map((one) => `inside an image: ${excerpt(one)}`);

  return Promise.all([...document.querySelectorAll(".hm image")].map(load))
    .then(() => [...new Set([...faint(), ...unnamed(), ...unreachable(), ...buried()])]);
})()
