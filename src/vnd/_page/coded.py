def of(*a): raise NotImplementedError
