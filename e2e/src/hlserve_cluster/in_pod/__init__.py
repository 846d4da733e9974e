"""Programs that tests run inside of pods: of the standard library alone, as the images hold nothing for them."""
