package queue

import "sync"

// These bound the items between reading and sending, and with them a batch's memory and the length of
// a pipeline.
const (
	maxItems = 512
	maxBytes = 2 << 20
)

// conveyor is a bounded buffer between the goroutine that reads and the one that sends. take returns
// everything that has gathered and never waits for more, so a slow source is sent at once and a fast
// one in long pipelines.
type conveyor struct {
	mu    sync.Mutex
	moved sync.Cond // something was put or taken, or the conveyor has ended
	items []*item
	bytes int
	ended bool
}

func newConveyor() *conveyor {
	c := &conveyor{}
	c.moved.L = &c.mu
	return c
}

// put adds an item, and waits while the conveyor is full. If the conveyor has ended, it drops the item
// and returns false.
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

// take returns all items that were put, in order, and waits while there are none. It returns nil if
// there are none and the conveyor has ended. It reuses spare, an earlier result.
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

// end makes put refuse further items. Items that were put before can still be taken. It may be called
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
