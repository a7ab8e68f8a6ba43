// Text shown with a matrix: facts of a head, a cell, a row or a column.

const HINT = "Hover over a token to see what it attends to; hold Shift to see what attends to it.";
const bold = (textContent) => element("strong", { textContent });
const quoted = (shown, i) => element("bdi", { textContent: shown.tokens[i] });

function cellText(shown, { row, column }) {
  const parts = [`dest[${row}] `, quoted(shown, row), ` → src[${column}] `, quoted(shown, column), " "];
  parts.push(bold(digits(valueAt(shown, { row, column }), shown)));
  if (shown.parts) {
    const [a, b] = shown.parts.map((values) => digits(values[rowStart(row) + column], { ...shown, signed: false }));
    parts.push(` (${a} − ${b})`);
  }
  return parts;
}

const MOST_LISTED = 3;

/** The largest values of a row or column. */
function lineText(shown, line) {
  const [own, others, arrow] = line.axis === "row" ? ["dest", "src", "→"] : ["src", "dest", "←"];
  const cells = shown.tokens.map((_, token) => [token, cellOn(line, token)]).filter(([, cell]) => cell);
  const values = cells.map(([token, cell]) => [token, valueAt(shown, cell)]).filter(([, value]) => !Number.isNaN(value));
  values.sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  const listed = values.slice(0, MOST_LISTED).flatMap(([token, value], i) => [
    i ? ", " : "", `${others}[${token}] `, quoted(shown, token), " ", bold(digits(value, shown)),
  ]);
  return [`${own}[${line.index}] `, quoted(shown, line.index), ` ${arrow} `, ...listed];
}

/** Largest weight of a head, and its scores. */
function facts(shown) {
  const { row, column } = cellAt(shown.largest);
  const value = shown.values[shown.largest];
  const pairs = [["largest", `${digits(value, shown)} at dest[${row}] → src[${column}]`]];
  const [place] = shown.places;
  const prompt = prompts[place.prompt];
  if (!shown.signed && prompt.isHead(place.head)) {
    for (const name of scoreNames) pairs.push([scoreTitles[name], scoreText(prompt.score(name, place))]);
  }
  return pairs.map(([name, text]) => {
    const fact = element("span", { textContent: `${name} ` });
    fact.append(element("b", { textContent: text }));
    return fact;
  });
}
