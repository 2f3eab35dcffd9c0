package queue

import "sync"

// What may lie between reading and sending. A pipeline takes all that lies
// there, so these bound a batch's memory and the length of a pipeline.
const (
	maxItems = 512
	maxBytes = 2 << 20
)

// conveyor carries items from the goroutine that reads to the one that sends.
// Whoever takes gets all that has gathered and never waits for more, so a slow
// source is sent at once and a fast one in long pipelines.
type conveyor struct {
	mu    sync.Mutex
	moved sync.Cond // something was put or taken, or the end has come
	items []*item
	bytes int
	ended bool
}

func newConveyor() *conveyor {
	c := &conveyor{}
	c.moved.L = &c.mu
	return c
}

// put adds an item, waiting while the conveyor is full. It answers false, and
// drops the item, once the conveyor has ended.
func (c *conveyor) put(it *item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.ended && (len(c.items) >= maxItems || c.bytes >= maxBytes) {
		c.moved.Wait()
	}
	if c.ended {
		return false
	}
	c.items = append(c.items, it)
	c.bytes += it.size()
	c.moved.Broadcast()
	return true
}

// take returns all that was put, in order, waiting while there is nothing. It
// answers nil when there is nothing and the conveyor has ended. spare, an
// earlier answer, is used again.
func (c *conveyor) take(spare []*item) []*item {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.ended && len(c.items) == 0 {
		c.moved.Wait()
	}
	if len(c.items) == 0 {
		return nil
	}
	clear(spare)
	taken := c.items
	c.items, c.bytes = spare[:0], 0
	c.moved.Broadcast()
	return taken
}

// end makes put refuse. What was put before can still be taken. It may be called
// more than once.
func (c *conveyor) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.moved.Broadcast()
}

func (it *item) size() int {
	if it.task == nil {
		return 0
	}
	return len(it.task.Payload())
}
