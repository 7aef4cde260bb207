"""How a plain function is called: the request that its tensors describe, what is kept between calls, and the launch."""
