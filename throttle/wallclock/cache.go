package wallclock

import "sync"

// cache keeps what was read lately. It is safe for concurrent use.
type cache[T any] struct {
	mu    sync.Mutex
	known map[[2]string]T // by expression and zone
}

// cached is how many a cache holds before it begins anew.
const cached = 1000

var (
	schedules cache[*Schedule]
	windows   cache[*Window]
)

// get returns what an expression in a zone is read as. Errors are not kept.
func (c *cache[T]) get(expr, zone string, read func(expr, zone string) (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{expr, zone}
	if value, known := c.known[key]; known {
		return value, nil
	}
	value, err := read(expr, zone)
	if err != nil {
		return value, err
	}
	if c.known == nil || len(c.known) == cached {
		c.known = make(map[[2]string]T)
	}
	c.known[key] = value
	return value, nil
}
