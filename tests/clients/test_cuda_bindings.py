from cuda.bindings import driver as cu
from arena import sim
def test_a(): 
    assert cu.cuInit(0)[0]==0
    print(sim.settings())
def test_b():
    assert 1+1 == cu.cuDriverGetVersion()[1]
def test_c():
    import os; os.kill(os.getpid(), 11)
