//go:build unix

package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/test/network"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

// concurrency is how many tasks each worker behind a network runs at once.
const concurrency = 16

// networked is a site whose workers have a network each to one Redis. No bare asynq runs beside them.
type networked struct {
	*site
	networks []*network.Proxy
	workers  []*programs.Program
}

// newNetworked enqueues n tasks, beside the networks, and starts the workers.
func newNetworked(t *testing.T, n int) *networked {
	t.Helper()
	server := redistest.NewServer(t)
	s := &networked{site: emptySite(t, single{server}, plainNames, workers*concurrency)}
	s.fill(s.ours, n)
	for range workers {
		between := network.NewProxy(t, server.Addr())
		s.networks = append(s.networks, between)
		s.workers = append(s.workers, s.worker("-redis", "redis://"+between.Addr(), "-concurrency", fmt.Sprint(concurrency)))
	}
	return s
}

// each does something to both networks.
func (s *networked) each(do func(*network.Proxy)) {
	for _, n := range s.networks {
		do(n)
	}
}

// until waits until n tasks have called the API.
func (s *networked) until(n int) {
	s.Helper()
	redistest.WaitFor(s.T, fmt.Sprintf("%d tasks to arrive", n), bound, func() bool { return s.ours.succeeded() >= n })
}

// perfect judges, and fails the test where asynq has archived a task, or counts more failures than tasks that were handed to nobody.
func (s *networked) perfect() (orphans int) {
	s.Helper()
	orphans = s.judge(0, false)
	info, err := s.inspector.GetQueueInfo(s.ours.queue)
	if err != nil || info.Archived != 0 || info.FailedTotal > orphans {
		s.Errorf("asynq has %+v, %v; want nothing archived and at most %d failures", info, err, orphans)
	}
	return orphans
}

// "All of it holds with Redis 20 ms away as beside it": nothing is lost, and nothing over a limit at the API, also where the way takes
// a quarter more or less each time.
func TestFarFromRedis(t *testing.T) {
	t.Parallel()
	const delay = 20 * time.Millisecond
	for _, jitter := range []time.Duration{0, delay / 4} {
		t.Run(fmt.Sprint("jitter ", jitter), func(t *testing.T) {
			t.Parallel()
			s := newNetworked(t, 200)
			s.each(func(n *network.Proxy) { n.Delay(delay, jitter) })
			s.perfect()
		})
	}
}

// All connections of both workers are cut each half second, in whatever they do.
func TestConnectionsAreCut(t *testing.T) {
	t.Parallel()
	n := sized(300, 3000)
	s := newNetworked(t, n)
	cuts, last := 0, time.Now()
	redistest.WaitFor(t, "most tasks to arrive", bound, func() bool {
		if time.Since(last) > 500*time.Millisecond {
			cuts, last = cuts+1, time.Now()
			s.each((*network.Proxy).Cut)
		}
		return s.ours.succeeded() >= n*9/10
	})
	// What a look took is given back when Redis answers; one that Redis takes from the network later than that is not.
	if orphans := s.perfect(); orphans > cuts/4 {
		t.Errorf("%d cuts left %d tasks to nobody; want a quarter at most", cuts, orphans)
	}
}

// Every 50th reply is lost: Redis has done what it was asked, and no worker knows.
func TestRepliesAreLost(t *testing.T) {
	t.Parallel()
	n := sized(300, 3000)
	s := newNetworked(t, n)
	s.each(func(n *network.Proxy) { n.LoseReplies(50) })
	s.until(n * 9 / 10)
	replies := 0
	s.each(func(n *network.Proxy) { n.LoseReplies(0); replies += n.Lost() })
	if orphans := s.perfect(); replies == 0 || orphans > replies/20 {
		t.Errorf("%d lost replies left %d tasks to nobody", replies, orphans)
	}
}

// partition is how long one lasts: at 30 s asynq would take running tasks for a dead worker's.
var partition = sized(5*time.Second, 20*time.Second)

// One of two workers cannot reach Redis, and nothing tells it: the other goes on with what the limits admit meanwhile, and when it is
// over the first goes on.
func TestOneIsPartitioned(t *testing.T) {
	t.Parallel()
	s := newNetworked(t, int(perSecond*partition.Seconds())+350)
	s.until(50)
	s.networks[0].Partition()
	began, before := s.ours.now(), s.ours.succeeded()
	lasts(partition)
	// More than the first worker had in its hands and the window admits, so that the last was granted when all that was charged
	// before had left the window. How long that takes is the machine's.
	s.until(before + concurrency + perSecond*3/2 + 1)
	used := float64(s.ours.succeeded()-before) / (perSecond * (s.ours.now() - began).Seconds())
	t.Logf("%.0f %% of the quota was used meanwhile", 100*used)
	s.networks[0].Heal()
	s.workers[1].Terminate() // so that whatever starts is the first's
	s.workers[1].Ends(0)
	s.flows(s.ours.now())
	s.perfect()
}

// Neither worker can reach Redis: nothing starts that was not granted before, and when it is over both go on.
func TestBothArePartitioned(t *testing.T) {
	t.Parallel()
	s := newNetworked(t, 250)
	s.until(50)
	s.each((*network.Proxy).Partition)
	before := s.ours.succeeded()
	lasts(partition)
	if n := s.ours.succeeded() - before; n > workers*concurrency {
		t.Errorf("%d tasks started without Redis; the workers had room for %d", n, workers*concurrency)
	}
	s.each((*network.Proxy).Heal)
	s.flows(s.ours.now())
	s.perfect()
}
