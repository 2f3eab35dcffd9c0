// Package awaycount counts the tasks that were put back and are due again later, by a key such as
// their scope. It stores no tasks, only how many of a key are due in each second, so a million tasks
// take no more memory than a hundred.
package awaycount

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// most is how many keys are counted separately.
const most = 1000

// Counts counts by key. The zero value is ready to use. It is safe for concurrent use.
type Counts[K comparable] struct {
	mu  sync.Mutex
	due map[K]map[int64]int // by the second in which they are due
}

// Add counts a task as away until it is due. asynq brings tasks in the second after that, and until
// then it still counts. Add returns false if there are 1000 keys already and key is another one.
func (c *Counts[K]) Add(key K, due, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	seconds := c.due[key]
	if seconds == nil {
		if len(c.due) >= most {
			c.prune(now)
		}
		if len(c.due) >= most {
			return false
		}
		if c.due == nil {
			c.due = map[K]map[int64]int{}
		}
		seconds = map[int64]int{}
		c.due[key] = seconds
	}
	seconds[due.Unix()+1]++ // asynq rounds up to a second
	return true
}

// Of returns how many tasks of a key are away.
func (c *Counts[K]) Of(key K, now time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(key, now)
}

// of removes the tasks that are due, and returns how many of a key are away. c.mu is held.
func (c *Counts[K]) of(key K, now time.Time) (n int) {
	seconds := c.due[key]
	for second, tasks := range seconds {
		if second < now.Unix() {
			delete(seconds, second)
			continue
		}
		n += tasks
	}
	if len(seconds) == 0 {
		delete(c.due, key)
	}
	return n
}

// All returns how many tasks are away, for each key that has any.
func (c *Counts[K]) All(now time.Time) map[K]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.prune(now)
}

func (c *Counts[K]) prune(now time.Time) map[K]int {
	all := map[K]int{}
	for _, key := range slices.Collect(maps.Keys(c.due)) {
		if n := c.of(key, now); n > 0 {
			all[key] = n
		}
	}
	return all
}
