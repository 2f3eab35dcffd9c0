package bench

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// fewKeys is how many keys of ours may be left where many tenants were.
const fewKeys = 50

// usageKeys are those that tell who spent what, which outlive the tasks.
var usageKeys = regexp.MustCompile(`!(used|units|shadows|scopes):`)

// leave ends the workers. Where the scenario asks for it, it notes before what is left of a run when so
// much time has passed, or few keys are left: our keys, and the memory that only the workers hold.
func (o *outcome) leave(b *testing.B, stop func() error) error {
	b.Helper()
	if o.traces == 0 {
		return stop()
	}
	held := heap()
	since := time.Now()
	keys := keysOf(b, o.rdb)
	for ; keys > fewKeys && time.Since(since) < o.traces; keys = keysOf(b, o.rdb) {
		<-time.After(time.Second)
	}
	took := time.Since(since)
	later := heap()
	err := stop()
	without := heap()
	const megabyte = 1 << 20
	o.notes = append(o.notes, fmt.Sprintf("%d keys after %.0f s; the workers hold %.1f MB in the end, and %.1f MB then",
		keys, took.Seconds(), (held-without)/megabyte, (later-without)/megabyte))
	return err
}

// heap returns the bytes of what this program still uses.
func heap() float64 {
	runtime.GC()
	runtime.GC() // what pools keep for one more
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// keysOf returns how many keys of ours there are, those of usage apart.
func keysOf(b *testing.B, rdb *redis.Client) (n int) {
	b.Helper()
	ctx := context.Background()
	keys := rdb.Scan(ctx, 0, ownKeys+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if !usageKeys.MatchString(keys.Val()) {
			n++
		}
	}
	if err := keys.Err(); err != nil {
		b.Fatal(err)
	}
	return n
}
