"""Traffic that is not live, run through the real engine with a clock of its own: test cases, explanations and (later)
recorded traffic. Nothing here decides; the engine does, and this package writes down what it did."""
