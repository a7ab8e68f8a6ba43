// What is said beside a picture: of a head, of a cell, of a row or column.

const HINT = "Point at a token to see where it looks, with Shift who looks at it.";
const bold = (textContent) => element("strong", { textContent });
const quoted = (shown, i) => element("bdi", { textContent: shown.tokens[i] });

function cellText(shown, { row, column }) {
  const told = [`dest[${row}] `, quoted(shown, row), ` → src[${column}] `, quoted(shown, column), " "];
  told.push(bold(digits(valueAt(shown, { row, column }), shown)));
  if (shown.parts) {
    const [a, b] = shown.parts.map((values) => digits(values[rowStart(row) + column], { ...shown, signed: false }));
    told.push(` (${a} less ${b})`);
  }
  return told;
}

const MOST_TOLD = 3;

/** The largest values of a row or column. */
function lineText(shown, line) {
  const [own, others, arrow] = line.axis === "row" ? ["dest", "src", "→"] : ["src", "dest", "←"];
  const cells = shown.tokens.map((_, token) => [token, cellOn(line, token)]).filter(([, cell]) => cell);
  const values = cells.map(([token, cell]) => [token, valueAt(shown, cell)]).filter(([, value]) => !Number.isNaN(value));
  values.sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  const told = values.slice(0, MOST_TOLD).flatMap(([token, value], i) => [
    i ? ", " : "", `${others}[${token}] `, quoted(shown, token), " ", bold(digits(value, shown)),
  ]);
  return [`${own}[${line.index}] `, quoted(shown, line.index), ` ${arrow} `, ...told];
}

/** What there is to say of a head: its largest weight and its scores. */
function facts(shown) {
  const { row, column } = cellAt(shown.largest);
  const value = shown.values[shown.largest];
  const told = [["largest", `${digits(value, shown)} at dest[${row}] → src[${column}]`]];
  const [place] = shown.places;
  const prompt = prompts[place.prompt];
  if (!shown.signed && prompt.isHead(place.head)) {
    for (const name of scoreNames) told.push([scoreTitles[name], scoreText(prompt.score(name, place))]);
  }
  return told.map(([name, text]) => {
    const fact = element("span", { textContent: `${name} ` });
    fact.append(element("b", { textContent: text }));
    return fact;
  });
}
