"""Valid files of each kind."""

from tests.pipeline.texts import text_of

GOOD, RECIPE, GIVEN = map(text_of, ("good.yaml", "recipe.yaml", "given.yaml"))
