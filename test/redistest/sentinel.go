package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// MasterName is the name by which the sentinels of a SentinelSet know its master.
	MasterName = "main"

	// missing is for how long a master must be silent before it is taken for dead. It bounds how quickly tests fail over, and how
	// long a busy machine may hold a server up before one fails over that nobody killed.
	missing = 2 * time.Second

	// formBound is how long several servers may need to find each other, or to agree on a
	// new master: some ten seconds on an idle machine.
	formBound = 90 * time.Second
)

// SentinelSet is a master, a replica and three sentinels that watch them, all processes of
// their own. A master that is silent for two seconds is replaced by the replica.
type SentinelSet struct {
	// Nodes are the master, as which the first begins, and the replica.
	Nodes [2]*Server
	// Sentinels are those who watch them.
	Sentinels [3]*Server
}

// NewSentinel starts a set and returns when its replica follows and its sentinels know each
// other, which takes some three seconds. The servers stop when t ends.
func NewSentinel(t testing.TB) *SentinelSet {
	t.Helper()
	set := &SentinelSet{}
	sync := []string{"--repl-diskless-sync-delay", "0"} // it waits 5 s for more replicas
	set.Nodes[0] = NewServer(t, Options{Args: sync})
	port := func(s *Server) string { return fmt.Sprint(s.port) }
	set.Nodes[1] = NewServer(t, Options{Args: append([]string{"--replicaof", "127.0.0.1", port(set.Nodes[0])}, sync...)})
	for i := range set.Sentinels {
		set.Sentinels[i] = NewServer(t, Options{sentinel: fmt.Sprintf(
			"sentinel monitor %[1]s 127.0.0.1 %[2]s 2\nsentinel down-after-milliseconds %[1]s %[3]d\nsentinel failover-timeout %[1]s 6000\n",
			MasterName, port(set.Nodes[0]), missing.Milliseconds())})
	}
	WaitAsking(t, "the sentinels to know each other and the replica", formBound, func() bool { return set.formed() })
	return set
}

// URL is what programs take as -redis.
func (set *SentinelSet) URL() string {
	return "redis-sentinel://" + strings.Join(set.addrs(), ",") + "/0?master=" + MasterName
}

// Client returns a client that follows the master, closed when t ends.
func (set *SentinelSet) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	return closing(t, redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: MasterName, SentinelAddrs: set.addrs(), DisableIdentity: true, DialerRetries: 1,
	}))
}

// Master returns the node that most sentinels take for the master, nil where they differ.
func (set *SentinelSet) Master() *Server {
	for _, node := range set.Nodes {
		votes := 0
		for _, s := range set.Sentinels {
			if s.masterAddr() == node.Addr() {
				votes++
			}
		}
		if votes > len(set.Sentinels)/2 {
			return node
		}
	}
	return nil
}

// TakesWrite says whether the master that the sentinels name takes a write of key now.
func (set *SentinelSet) TakesWrite(key string) bool {
	master := set.Master()
	return master != nil && master.TakesWrite(key)
}

// WaitReplica waits until the set has a master again that its other node follows.
func (set *SentinelSet) WaitReplica(t testing.TB) {
	t.Helper()
	WaitAsking(t, "the other node to follow the master", formBound, func() bool {
		master := set.Master()
		return master != nil && master.field("replication", "role") == "master" && set.followed(master)
	})
}

func (set *SentinelSet) addrs() []string {
	var addrs []string
	for _, s := range set.Sentinels {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// formed says whether each sentinel knows the two others and a replica, and that follows.
func (set *SentinelSet) formed() bool {
	for _, s := range set.Sentinels {
		state := s.field("sentinel", "master0")
		if !strings.Contains(state, "status=ok,") || !strings.Contains(state, ",slaves=1,sentinels=3") {
			return false
		}
	}
	return set.followed(set.Nodes[0])
}

// followed says whether the node that is not the master follows it.
func (set *SentinelSet) followed(master *Server) bool {
	for _, node := range set.Nodes {
		if node != master {
			return node.field("replication", "master_link_status") == "up" &&
				node.field("replication", "master_port") == fmt.Sprint(master.port)
		}
	}
	return false
}

// masterAddr is where a sentinel says that the master is, "" if it does not answer.
func (s *Server) masterAddr() (addr string) {
	_ = s.ask(func(ctx context.Context, c *redis.Client) error {
		reply, err := c.Do(ctx, "SENTINEL", "get-master-addr-by-name", MasterName).StringSlice()
		if err == nil && len(reply) == 2 {
			addr = net.JoinHostPort(reply[0], reply[1])
		}
		return err
	})
	return addr
}

func (s *Server) sentinelFile() string { return filepath.Join(s.dir, "sentinel.conf") }

// writeSentinel writes a sentinel's first configuration, which it changes as it learns.
func (s *Server) writeSentinel() error {
	if s.opts.sentinel == "" {
		return nil
	}
	text := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %s\nprotected-mode no\n%s", s.port, s.dir, s.opts.sentinel)
	return os.WriteFile(s.sentinelFile(), []byte(text), 0o600)
}
