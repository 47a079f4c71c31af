"""The gate: does a change of a model, a spec or the toolchain make anything worse than agreed?

In: a gate file (models x hardware, budgets, allowed regressions, waivers, a baseline), the tree it
lies in, and today's date.  Out: a `Verdict` with a finding for everything that was looked at, and
its forms: text, JSON, JUnit, SARIF, Markdown, annotations.  Figures are simulated, so that there is
no noise: equal inputs give an equal verdict.  Must not know the terminal, nor how a compile works:
it orders compiles (`service.orders`) and compares what they give (`service.compare`).
"""
