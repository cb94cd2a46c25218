"""Tables, figures and pages, made from result files only; `theory` alone draws the distributions themselves."""
