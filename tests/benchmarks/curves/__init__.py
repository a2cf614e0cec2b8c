"""Cost curves: what one thing costs as its population grows. `python -m tests.benchmarks.curves [NAME …]`; see `names`.

A bar is a ratio at one size; a curve is figures at many, and their slope: the exponent b of cost = a · n^b, by least squares over
the logarithms. 0: the cost does not depend on n; 1: twice as many cost twice as much. What costs processor time is measured as
such, of the process that does the work, so that a busy machine moves it less than a clock.
"""
