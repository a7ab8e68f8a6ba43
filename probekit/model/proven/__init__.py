"""Networks that transformers computes, with sites that are proven on the loaded model."""
