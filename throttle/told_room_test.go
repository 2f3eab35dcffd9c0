package throttle

import (
	"fmt"
	"testing"
	"time"
)

// "Below one name of the second level at most 1,000 are kept": an API that pauses each path of one tenant
// pauses the whole of it beyond that, and nobody beside it. What is over makes room.
func TestToldIsBounded(t *testing.T) {
	t.Parallel()
	policy := tenants(t, "p", []Rule{bucket(1000, 1000)}, nil)
	onBoth(t, Config{}, policy, func(b *bench) {
		told := toldKey(b.provider("p"))
		b.heed("p/b/x", turnedDown(time.Hour))
		for i := range 1200 {
			b.heed(fmt.Sprint("p/a/", i), turnedDown(time.Minute))
		}
		if n := b.rdb.HLen(ctx, told).Val(); n > 1010 {
			b.t.Errorf("%d are kept", n)
		}
		for scope, starts := range map[string]bool{"p/a": false, "p/a/new": false, "p/a/7": false, "p/b/x": false, "p/b": true, "p/b/y": true, "p/c/z": true} {
			if d := b.decide(Request{Scope: scope}); d.Allowed != starts {
				b.t.Errorf("%s starts: %t", scope, d.Allowed)
			}
		}
		b.pass(2 * time.Minute)
		b.heed("p/a/late", turnedDown(time.Minute))
		for scope, starts := range map[string]bool{"p/a": true, "p/a/new": true, "p/a/late": false, "p/b/x": false} {
			if d := b.decide(Request{Scope: scope}); d.Allowed != starts {
				b.t.Errorf("%s starts: %t, when what was told is over", scope, d.Allowed)
			}
		}
		if n := b.rdb.HLen(ctx, told).Val(); n > 10 {
			b.t.Errorf("%d are kept of what is over", n)
		}
	})
}
