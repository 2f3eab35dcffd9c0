//go:build unix

package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// "Flow is back within ten seconds of Redis, nothing is lost and nothing is over a limit": one server that stops and goes on,
// with all that it had. One that dies writes each command to disk before it answers.
func TestServerFaults(t *testing.T) {
	t.Parallel()
	for name, strike := range map[string]func(*testing.T, *redistest.Server){
		"freezes": func(t *testing.T, s *redistest.Server) {
			s.Freeze(t)
			lasts(sized(2*time.Second, 5*time.Second))
			s.Thaw(t)
		},
		"freezes for long": func(t *testing.T, s *redistest.Server) {
			s.Freeze(t)
			lasts(20 * time.Second)
			s.Thaw(t)
		},
		"is read-only": func(t *testing.T, s *redistest.Server) {
			do(t, s, "REPLICAOF", "127.0.0.1", "1") // where nobody is
			lasts(sized(2*time.Second, 5*time.Second))
			do(t, s, "REPLICAOF", "NO", "ONE")
		},
		"dies twice": func(t *testing.T, s *redistest.Server) {
			for range 2 {
				s.Kill9()
				s.Restart(t)
			}
		},
		"is full": func(t *testing.T, s *redistest.Server) {
			do(t, s, "CONFIG", "SET", "maxmemory", "1")
			lasts(sized(2*time.Second, 5*time.Second))
			do(t, s, "CONFIG", "SET", "maxmemory", "0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "freezes for long" && !full {
				t.Skip("takes half a minute; make faults runs it")
			}
			options := redistest.Options{}
			if name == "dies twice" {
				options.Args = []string{"--appendonly", "yes", "--appendfsync", "always"}
			}
			server := redistest.NewServer(t, options)
			s := newSite(t, single{server}, plainNames, sized(200, 600))
			s.under()
			strike(t, server)
			s.takesWrites()
			s.flows(s.ours.now())
			s.judge(0, false)
		})
	}
}

// "A server that forgets its scripts does not hold tasks up." That cut connections do not is TestConnectionsAreCut.
func TestServerNuisances(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	s := newSite(t, single{server}, plainNames, sized(200, 600))
	s.under()
	began := s.ours.now()
	for range sized(20, 60) {
		do(t, server, "SCRIPT", "FLUSH")
		lasts(100 * time.Millisecond)
	}
	s.flows(began)
	s.judge(0, false)
}

// do has a server obey a command over a connection that is not the test's own.
func do(t *testing.T, server *redistest.Server, command ...any) {
	t.Helper()
	if err := server.Client(t).Do(context.Background(), command...).Err(); err != nil {
		t.Fatalf("%v: %v", command, err)
	}
}

// "Sentinel: a master that is killed is replaced, tasks flow again within ten seconds of the
// new one, and the old one may come back." What the new master has forgotten is told.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	set := redistest.NewSentinel(t)
	s := newSite(t, set, plainNames, sized(200, 600))
	s.under()
	s.failover(set.Master(), func() { set.WaitReplica(t) })
}

// failover kills a master, restarts it when tasks flow again, and judges when the servers are whole again.
func (s *site) failover(master *redistest.Server, waitWhole func()) {
	s.Helper()
	struck := s.ours.now()
	master.Kill9()
	s.takesWrites()
	back := s.ours.now()
	s.Logf("Redis took writes again %v after a master was killed", back-struck)
	s.flows(back)
	master.Restart(s.T)
	waitWhole()
	s.judge(struck, true)
	s.forgot()
}

// "Cluster: the same for the master of the provider's slot, and for that of the queue's."
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"provider", "queue"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			if of == "queue" && !full {
				t.Skip("make faults runs it")
			}
			s, set, key := newClusterSite(t, of)
			s.failover(set.Owner(key), func() { set.WaitWhole(t) })
		})
	}
}

// "Slots that move": nothing is lost and nothing is over, and tasks flow again within ten seconds of the end of a move.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]time.Duration{"quickly": 0, "slowly": sized(2*time.Second, 3*time.Second), "for long": 30 * time.Second} {
		for _, of := range []string{"provider", "queue"} {
			t.Run(of+" "+name, func(t *testing.T) {
				t.Parallel()
				if !full && (of == "queue" || name != "slowly") {
					t.Skip("make faults runs it")
				}
				s, set, key := newClusterSite(t, of)
				move := set.BeginMove(t, key)
				began := s.ours.now()
				lasts(open)
				t.Logf("%d calls arrived while the slot was half moved", len(s.ours.after(began)))
				move.Finish(t)
				s.takesWrites()
				s.flows(s.ours.now())
				s.judge(0, false)
			})
		}
	}
}

// newClusterSite returns a site under load on a cluster, and the hash tag of its provider or its queue.
func newClusterSite(t *testing.T, of string) (s *site, set *redistest.ClusterSet, key string) {
	t.Helper()
	set = redistest.NewCluster(t)
	called := apart(set)
	s = newSite(t, set, called, sized(200, 600))
	s.under()
	return s, set, map[string]string{"provider": "{" + called.provider + "}", "queue": "{" + called.ours + "}"}[of]
}

// apart returns names whose slots are not all one master's: the provider has one, and the queues another.
func apart(set *redistest.ClusterSet) (called names) {
	owner := map[string]*redistest.Server{}
	pick := func(prefix string, fits func(*redistest.Server) bool) string {
		for i := 0; ; i++ {
			name := fmt.Sprint(prefix, i)
			if fits(set.Owner("{" + name + "}")) {
				owner[prefix] = set.Owner("{" + name + "}")
				return name
			}
		}
	}
	called.provider = pick("p", func(s *redistest.Server) bool { return s != nil })
	called.ours = pick("ours", func(s *redistest.Server) bool { return s != nil && s != owner["p"] })
	called.bare = pick("bare", func(s *redistest.Server) bool { return s == owner["ours"] })
	return called
}

// forgot fails the test unless nearly all that arrived is still counted: "a failover forgets the grants
// that the new master has not seen, usually milliseconds of them".
func (s *site) forgot() {
	s.Helper()
	n := s.forgotten()
	s.Logf("%d of %d starts were forgotten", n, len(s.ours.tasks))
	if n > perSecond {
		s.Errorf("the new master has forgotten %d starts, more than a second of them", n)
	}
}
