//go:build unix

package redistest_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// failsOver is how long a set may need to replace a master: four seconds were seen.
const failsOver = time.Minute

// A SentinelSet replaces a master that was killed, keeps what was replicated, and takes the
// killed one back as a replica.
func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	set := redistest.NewSentinel(t)
	c, first := set.Client(t), set.Master()
	if first != set.Nodes[0] || !set.TakesWrite("k") {
		t.Fatalf("the master is %v and takes writes: %t", first, set.TakesWrite("k"))
	}
	kept(t, first, "kept")
	first.Kill9()
	if set.TakesWrite("k") {
		t.Error("a set whose master is dead takes writes")
	}
	redistest.WaitAsking(t, "the replica to take over", failsOver, func() bool { return set.TakesWrite("k") })
	if set.Master() != set.Nodes[1] {
		t.Error("the master is not the replica")
	}
	redistest.WaitAsking(t, "the client to follow", failsOver, func() bool { return c.Get(ctx, "kept").Val() == "x" })
	first.Restart(t)
	set.WaitReplica(t)
	if got := first.Client(t).Get(ctx, "kept").Val(); got != "x" {
		t.Errorf("the master that came back has %q, want what the new one has", got)
	}
}

// A ClusterSet does the same for each master alone.
func TestClusterFailsOver(t *testing.T) {
	t.Parallel()
	set := redistest.NewCluster(t)
	const key = "k"
	c, first := set.Client(t), set.Owner(key)
	i := slices.Index(set.Nodes[:], first)
	kept(t, first, key)
	first.Kill9()
	redistest.WaitAsking(t, "the replica to take over", failsOver, func() bool { return set.TakesWrite("{" + key + "}new") })
	redistest.WaitAsking(t, "all to know", failsOver, func() bool { return set.Owner(key) == set.Nodes[i+3] })
	redistest.WaitAsking(t, "the client to follow", failsOver, func() bool { return c.Get(ctx, key).Err() == nil })
	first.Restart(t)
	set.WaitWhole(t)
	if first.TakesWrite(key) {
		t.Error("the master that came back takes writes")
	}
}

// A slot that is half moved has keys on two masters, and no call over keys of both is
// answered; when the move is done all keys are where it went.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	set := redistest.NewCluster(t)
	c := set.Client(t)
	keys := []string{"{s}1", "{s}2", "{s}3", "{s}4"}
	from := set.Owner(keys[0])
	for _, key := range keys {
		kept(t, from, key)
	}
	move := set.BeginMove(t, keys[0])
	if err := c.MGet(ctx, keys...).Err(); !redis.HasErrorPrefix(err, "TRYAGAIN") {
		t.Errorf("half moved: %v, want TRYAGAIN", err)
	}
	for _, key := range keys {
		if got, err := c.Get(ctx, key).Result(); got != "x" {
			t.Errorf("half moved: %s is %q, %v", key, got, err)
		}
	}
	move.Finish(t)
	if got := c.MGet(ctx, keys...).Val(); len(got) != 4 || slices.Contains(got, nil) {
		t.Errorf("moved: %v", got)
	}
	redistest.WaitAsking(t, "all to know", failsOver, func() bool { o := set.Owner(keys[0]); return o != nil && o != from })
}

// kept writes a key to a master and waits until its replica has it.
func kept(t *testing.T, master *redistest.Server, key string) {
	t.Helper()
	var has *redis.Cmd
	_, err := master.Client(t).Pipelined(ctx, func(p redis.Pipeliner) error { // over one connection
		p.Set(ctx, key, "x", 0)
		has = p.Do(ctx, "WAIT", 1, 10_000)
		return nil
	})
	if n, _ := has.Int(); err != nil || n != 1 {
		t.Fatalf("%d replicas have %s, %v", n, key, err)
	}
}

// A frozen server answers nothing, and goes on where it was.
func TestFreeze(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t)
	if !s.TakesWrite("k") {
		t.Fatal("a server takes no write")
	}
	s.Freeze(t)
	if s.TakesWrite("k") {
		t.Error("a frozen server takes a write")
	}
	s.Thaw(t)
	redistest.WaitAsking(t, "it to go on", failsOver, func() bool { return s.TakesWrite("k") })
	s.Freeze(t) // the test's end kills it so
}
