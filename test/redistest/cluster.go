package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	masters  = 3
	allSlots = 16384

	// moveBatch is how many keys go over in one command while a slot moves.
	moveBatch = 100
)

// ClusterSet is a Redis Cluster of three masters with a replica each, all processes of their
// own. A master that is silent for two seconds is replaced by its replica.
type ClusterSet struct {
	// Nodes are the masters and then, in the same order, the replicas, as they begin.
	Nodes [2 * masters]*Server
	ids   map[*Server]string
}

// NewCluster starts a cluster and returns when all of it agrees on who owns which slots, which
// takes some three seconds. The servers stop when t ends.
func NewCluster(t testing.TB) *ClusterSet {
	t.Helper()
	set := &ClusterSet{ids: map[*Server]string{}}
	for i := range set.Nodes {
		set.Nodes[i] = NewServer(t, Options{Cluster: true, member: true, Args: []string{
			"--cluster-node-timeout", fmt.Sprint(missing.Milliseconds()), "--cluster-replica-validity-factor", "0",
			"--cluster-allow-replica-migration", "no", "--repl-diskless-sync-delay", "0",
		}})
	}
	set.form(t)
	set.WaitWhole(t)
	return set
}

// form deals out the slots, has the nodes meet, and gives each master its replica.
func (set *ClusterSet) form(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("redistest: form a cluster: %v", err)
		}
	}
	for i, node := range set.Nodes {
		c := node.Client(t)
		id, err := c.Do(ctx, "CLUSTER", "MYID").Text()
		must(err)
		set.ids[node] = id
		must(c.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		if i < masters {
			must(c.ClusterAddSlotsRange(ctx, i*allSlots/masters, (i+1)*allSlots/masters-1).Err())
		}
		must(c.ClusterMeet(ctx, "127.0.0.1", fmt.Sprint(set.Nodes[0].port)).Err())
	}
	WaitAsking(t, "the nodes to know each other", formBound, func() bool { return set.each(knowsAll) })
	for i, node := range set.Nodes[masters:] {
		must(node.Client(t).ClusterReplicate(ctx, set.ids[set.Nodes[i]]).Err())
	}
}

// URL is what programs take as -redis.
func (set *ClusterSet) URL() string {
	return "redis+cluster://" + set.Nodes[0].Addr() + "?addr=" + set.Nodes[1].Addr() + "&addr=" + set.Nodes[2].Addr()
}

// Client returns a client that looks every half a second who owns which slots, closed when t ends.
func (set *ClusterSet) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	opts := &redis.ClusterOptions{
		DisableIdentity: true, DialerRetries: 1, ClusterStateReloadInterval: 500 * time.Millisecond,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, node := range set.Nodes {
		opts.Addrs = append(opts.Addrs, node.Addr())
	}
	return closing(t, redis.NewClusterClient(opts))
}

// Owner returns the master of a key's slot by what most nodes say, nil where none has more than half of them.
func (set *ClusterSet) Owner(key string) *Server {
	votes := map[string]int{}
	for _, node := range set.Nodes {
		if addr := node.ownerOf(key); addr != "" {
			votes[addr]++
		}
	}
	for _, node := range set.Nodes {
		if votes[node.Addr()] > len(set.Nodes)/2 {
			return node
		}
	}
	return nil
}

// TakesWrite says whether any node takes a write of key now.
func (set *ClusterSet) TakesWrite(key string) bool {
	for _, node := range set.Nodes {
		if node.TakesWrite(key) {
			return true
		}
	}
	return false
}

// WaitWhole waits until every node calls the cluster whole and every replica follows.
func (set *ClusterSet) WaitWhole(t testing.TB) {
	t.Helper()
	WaitAsking(t, "the cluster to be whole", formBound, func() bool {
		following := 0
		for _, node := range set.Nodes {
			if node.field("replication", "master_link_status") == "up" {
				following++
			}
		}
		return following == masters && set.each(whole)
	})
}

// each says whether f is so for every node.
func (set *ClusterSet) each(f func(context.Context, *redis.Client) error) bool {
	for _, node := range set.Nodes {
		if node.ask(f) != nil {
			return false
		}
	}
	return true
}

var errNotYet = errors.New("redistest: not yet")

func knowsAll(ctx context.Context, c *redis.Client) error {
	nodes, err := c.ClusterNodes(ctx).Result()
	if err == nil && (strings.Count(nodes, "\n") != 2*masters || strings.Contains(nodes, "handshake") ||
		strings.Count(nodes, " connected") != 2*masters) {
		return errNotYet
	}
	return err
}

func whole(ctx context.Context, c *redis.Client) error {
	info, err := c.ClusterInfo(ctx).Result()
	if err == nil && (!strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprintf("cluster_slots_ok:%d\r", allSlots))) {
		return errNotYet
	}
	return err
}

// ownerOf is the address of the master of a key's slot as this node knows it, "" while it knows none.
func (s *Server) ownerOf(key string) string {
	err := s.ask(func(ctx context.Context, c *redis.Client) error { return c.Exists(ctx, key).Err() })
	switch {
	case err == nil, redis.HasErrorPrefix(err, "ASK "): // the slot is on its way from here
		return s.Addr()
	case redis.HasErrorPrefix(err, "MOVED "):
		return err.Error()[strings.LastIndexByte(err.Error(), ' ')+1:]
	}
	return ""
}

// Move is a slot on its way from one master to another, as redis-cli --cluster reshard moves
// it. Until it is done, keys of the slot stand on both.
type Move struct {
	set      *ClusterSet
	slot     int64
	from, to *Server
}

// BeginMove opens the slot of key for the move to another master and takes half of its keys
// over. It returns with the slot half moved.
func (set *ClusterSet) BeginMove(t testing.TB, key string) *Move {
	t.Helper()
	m := &Move{set: set, from: set.Owner(key)}
	if m.from == nil {
		t.Fatalf("redistest: no node owns the slot of %q", key)
	}
	for _, node := range set.Nodes {
		if node != m.from && node.field("replication", "role") == "master" {
			m.to = node
		}
	}
	ctx := context.Background()
	var err error
	if m.slot, err = m.from.Client(t).ClusterKeySlot(ctx, key).Result(); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	m.setSlot(t, m.to, "IMPORTING", set.ids[m.from])
	m.setSlot(t, m.from, "MIGRATING", set.ids[m.to])
	n, err := m.from.Client(t).ClusterCountKeysInSlot(ctx, int(m.slot)).Result()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	m.take(t, int(n+1)/2)
	return m
}

// Finish takes the rest of the keys over and tells the masters who owns the slot now.
func (m *Move) Finish(t testing.TB) {
	t.Helper()
	for m.take(t, moveBatch) > 0 {
	}
	m.setSlot(t, m.to, "NODE", m.set.ids[m.to])
	m.setSlot(t, m.from, "NODE", m.set.ids[m.to])
}

// take takes up to n keys over and returns how many there were to take.
func (m *Move) take(t testing.TB, n int) int {
	t.Helper()
	ctx, c := context.Background(), m.from.Client(t)
	keys, err := c.ClusterGetKeysInSlot(ctx, int(m.slot), n).Result()
	if err != nil {
		t.Fatalf("redistest: keys of slot %d: %v", m.slot, err)
	}
	if len(keys) == 0 {
		return 0
	}
	args := []any{"MIGRATE", "127.0.0.1", m.to.port, "", 0, 5000, "KEYS"}
	for _, key := range keys {
		args = append(args, key)
	}
	if err := c.Do(ctx, args...).Err(); err != nil {
		t.Fatalf("redistest: migrate %d keys: %v", len(keys), err)
	}
	return len(keys)
}

func (m *Move) setSlot(t testing.TB, node *Server, state, id string) {
	t.Helper()
	if err := node.Client(t).Do(context.Background(), "CLUSTER", "SETSLOT", m.slot, state, id).Err(); err != nil {
		t.Fatalf("redistest: setslot %d %s: %v", m.slot, state, err)
	}
}
