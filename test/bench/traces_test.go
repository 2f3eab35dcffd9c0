package bench

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// fewKeys is how many keys of ours may be left where many tenants were.
const fewKeys = 50

// usageKeys are those that tell who spent what, which outlive the tasks.
var usageKeys = regexp.MustCompile(`!(used|units|shadows|scopes|spent):`)

// leave ends the workers. Where the scenario asks for it, it notes before how many keys of ours are left when so much time
// has passed, or few are.
func (o *outcome) leave(b *testing.B, stop func() error) error {
	b.Helper()
	if o.traces > 0 {
		since := time.Now()
		var usage int
		for o.keys, usage = keysOf(b, o.rdb); len(o.keys) > fewKeys && time.Since(since) < o.traces; o.keys, usage = keysOf(b, o.rdb) {
			<-time.After(time.Second)
		}
		o.notes = append(o.notes, fmt.Sprintf("%d keys after %.0f s, and %d of usage", len(o.keys), time.Since(since).Seconds(), usage))
	}
	return stop()
}

// keysOf returns the keys of ours, and how many more are those of usage.
func keysOf(b *testing.B, rdb *redis.Client) (ours []string, usage int) {
	b.Helper()
	eachKey(b, rdb, func(key string) {
		if usageKeys.MatchString(key) {
			usage++
		} else {
			ours = append(ours, key)
		}
	})
	return ours, usage
}
