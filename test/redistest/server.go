package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	startBound = 30 * time.Second // a cluster node alone needs two seconds
	dialTries  = 8

	// Ports come from below the range from which Linux takes the local ports of outgoing connections (32768 and up), and so do
	// the bus ports of cluster nodes, which stand 10000 above.
	firstPort, lastPort = 20000, 22700
)

// Options is how a private server differs from the ordinary one. The zero
// value is a server without a password, alone, that keeps nothing on disk.
type Options struct {
	// Args are further arguments of redis-server, which override those that this package gives: {"--appendonly", "yes",
	// "--maxmemory", "8mb"}. Defaults to none.
	Args []string
	// Password is what clients must give (requirepass). Server.Client does. Defaults to no password.
	Password string
	// Cluster makes the server a cluster of one node that owns all slots. Defaults to false.
	Cluster bool

	member   bool   // a node of a cluster that NewCluster forms
	sentinel string // the configuration of a sentinel, but for its port: it is no data node
}

// Server is a redis-server that belongs to the tests. Its methods that change
// the process (Kill9, Stop, Restart) may be called from any goroutine.
type Server struct {
	opts Options
	port int
	dir  string // for its files and redis.log; it lasts across Restart, and is removed at the end

	mu   sync.Mutex
	proc *process // nil while stopped
}

// NewServer starts a private server and stops it when t ends. Of opts only the first counts.
func NewServer(t testing.TB, opts ...Options) *Server {
	t.Helper()
	s, err := start(append(opts, Options{})[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Addr returns the server's host:port, which Restart keeps.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Client returns a client of the server, closed when t ends. It sends nothing when it connects beyond what the protocol needs.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	return closing(t, redis.NewClient(s.clientOptions()))
}

// Kill9 ends the server as a crash would, and returns when it is gone. It does nothing to a server that is not running.
func (s *Server) Kill9() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.kill()
		s.proc = nil
	}
}

// Stop asks the server to end, as an operator would, and returns when it is
// gone. It does nothing to a server that is not running.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
}

// Restart starts the server again at the same address and in the same directory, stopping it first where it runs. What the server
// had on disk it has again.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.proc, err = s.launch(); err != nil {
		t.Fatal(err)
	}
}

// start runs a server at a port that is free.
func start(opts Options) (*Server, error) {
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	s := &Server{opts: opts, dir: dir}
	var errs error
	for range dialTries {
		s.port = freePort(opts.Cluster)
		if err := s.writeSentinel(); err != nil {
			return nil, errors.Join(err, s.close())
		}
		proc, err := s.launch()
		if err == nil {
			s.proc = proc
			return s, nil
		}
		errs = err
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, errors.Join(errs, s.close())
}

func (s *Server) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	err := s.proc.terminate()
	s.proc = nil
	return err
}

// close ends the server and removes what it left.
func (s *Server) close() error {
	s.Kill9()
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	return nil
}

// launch starts the process and waits until it answers.
func (s *Server) launch() (*process, error) {
	path, err := program()
	if err != nil {
		return nil, err
	}
	proc, err := run(path, s.args(), filepath.Join(s.dir, "redis.log"))
	if err != nil {
		return nil, err
	}
	if err := s.ready(proc); err != nil {
		proc.kill()
		return nil, err
	}
	return proc, nil
}

func (s *Server) args() []string {
	if s.opts.sentinel != "" {
		return []string{s.sentinelFile(), "--sentinel"}
	}
	args := []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--protected-mode", "no",
		"--dir", s.dir, "--save", "", "--appendonly", "no", "--daemonize", "no",
		"--loglevel", "notice",
	}
	if s.opts.Password != "" {
		args = append(args, "--requirepass", s.opts.Password)
	}
	if s.opts.Cluster {
		args = append(args, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-announce-ip", "127.0.0.1")
	}
	return append(args, s.opts.Args...)
}

func (s *Server) clientOptions() *redis.Options {
	return &redis.Options{
		Addr:                     s.Addr(),
		Password:                 s.opts.Password,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// ready waits until the process itself answers: another server may own the port.
func (s *Server) ready(proc *process) error {
	opts := s.clientOptions()
	opts.MaxRetries = -1
	c := redis.NewClient(opts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), Stretch(startBound))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if last = s.probe(ctx, c, proc); last == nil {
			return nil
		}
		select {
		case <-proc.gone:
			return proc.failure("redis-server ended while starting")
		case <-ctx.Done():
			return proc.failure(fmt.Sprintf("redis-server was not ready within %v (%v)", Stretch(startBound), last))
		case <-tick.C:
		}
	}
}

func (s *Server) probe(ctx context.Context, c *redis.Client, proc *process) error {
	info, err := c.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	if !strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", proc.cmd.Process.Pid)) {
		return errors.New("another redis-server answers at the port")
	}
	// While it loads its files INFO answers and PING does not.
	if err := c.Ping(ctx).Err(); err != nil {
		return err
	}
	if !s.opts.Cluster || s.opts.member {
		return nil
	}
	return formCluster(ctx, c)
}

// formCluster gives the node all slots, once, and says whether the cluster has noticed.
func formCluster(ctx context.Context, c *redis.Client) error {
	info, err := c.ClusterInfo(ctx).Result()
	switch {
	case err != nil:
		return err
	case strings.Contains(info, "cluster_slots_assigned:0\r\n"):
		return errors.Join(c.ClusterAddSlotsRange(ctx, 0, allSlots-1).Err(), errors.New("slots just assigned"))
	case !strings.Contains(info, "cluster_state:ok"):
		return errors.New("cluster state is not ok")
	}
	return nil
}

// freePort draws a port at which nothing listens now. Somebody else may take it
// before redis-server does, which start sees and draws again.
func freePort(cluster bool) int {
	port := 0
	for range 100 {
		port = firstPort + rand.IntN(lastPort-firstPort)
		if listens(port) || cluster && listens(port+10000) {
			continue
		}
		return port
	}
	return port
}

func listens(port int) bool {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return true
	}
	l.Close()
	return false
}

var errPortTaken = errors.New("the port is taken")

// closing returns c, to be closed when t ends.
func closing[C interface{ Close() error }](t testing.TB, c C) C {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("redistest: close client: %v", err)
		}
	})
	return c
}
