package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// bullMQ is BullMQ, which npm installs when it is first asked for, into a directory that goes away with this program.
var bullMQ peer

type peer struct {
	once    sync.Once
	dir     string
	version string
	err     error
}

// ready installs BullMQ, once, and returns why it cannot run here.
func (p *peer) ready() error {
	if !long() {
		return errors.New("it is only among all scenarios")
	}
	p.once.Do(p.install)
	return p.err
}

func (p *peer) install() {
	if _, p.err = exec.LookPath("node"); p.err != nil {
		return
	}
	if p.dir, p.err = os.MkdirTemp("", "bullmq"); p.err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", p.dir,
		"bullmq", "ioredis")
	if out, err := npm.CombinedOutput(); err != nil {
		p.err = fmt.Errorf("npm install bullmq: %w: %s", err, firstLine(out))
		return
	}
	var about struct{ Version string }
	text, err := os.ReadFile(filepath.Join(p.dir, "node_modules", "bullmq", "package.json"))
	p.err = errors.Join(err, json.Unmarshal(text, &about))
	p.version = about.Version
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

// remove removes what was installed.
func (p *peer) remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

// contender is BullMQ's limiter: so many jobs in so many milliseconds, counted from the first.
func (p *peer) contender() contender {
	var child *node // of the run at hand
	return contender{
		name: "BullMQ", spell: peerSpell, ready: p.ready,
		enqueue: func(st *stage) (err error) { child, err = p.start(st); return err },
		serve:   func(st *stage) (stop func() error, err error) { return child.serve(st) },
		lost:    func(ids []string) int { return max(0, len(ids)-child.left) },
	}
}

// node is the script testdata/bullmq.mjs while it runs.
type node struct {
	in   io.WriteCloser
	out  *bufio.Reader
	end  func()
	left int // jobs that it still had in the end
}

// start starts the script, and returns when it has enqueued the stage's tasks. It has five minutes for all it does.
func (p *peer) start(st *stage) (*node, error) {
	script, err := filepath.Abs("testdata/bullmq.mjs")
	if err != nil {
		return nil, err
	}
	rule, _ := ruleNamed(st.limits, st.binding)
	_, port, _ := net.SplitHostPort(st.server.Addr())
	args := []string{script, port}
	for _, n := range []int64{int64(len(st.tasks)), rule.Limit, rule.Per.Milliseconds(), concurrency} {
		args = append(args, strconv.FormatInt(n, 10))
	}
	if st.at != nil {
		args = append(args, st.at.URL("p"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	cmd := exec.CommandContext(ctx, "node", args...) //nolint:gosec // a script of ours
	cmd.Dir, cmd.Stderr = p.dir, os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		cancel()
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	n := &node{in: in, out: bufio.NewReader(out), end: func() { cancel(); _ = cmd.Wait() }}
	if line, err := n.out.ReadString('\n'); line != "ready\n" {
		n.end()
		return nil, fmt.Errorf("BullMQ enqueued nothing: %w", err)
	}
	return n, nil
}

// serve lets the script work, and notes the starts that it tells of in the end.
func (n *node) serve(st *stage) (stop func() error, err error) {
	if err := n.say(); err != nil {
		n.end()
		return nil, err
	}
	told := make(chan string, 1)
	go func() {
		line, _ := n.out.ReadString('\n')
		if line == "done\n" {
			st.starts.finish()
			line, _ = n.out.ReadString('\n')
		}
		told <- line
	}()
	return func() error {
		defer n.end()
		if err := n.say(); err != nil {
			return err
		}
		var last struct {
			Starts [][2]any
			Left   int
		}
		if err := json.Unmarshal([]byte(<-told), &last); err != nil {
			return fmt.Errorf("BullMQ told of no starts: %w", err)
		}
		n.left = last.Left
		st.starts.note(startsOf(last.Starts)...)
		return nil
	}, nil
}

// say writes the line that the script waits for.
func (n *node) say() error {
	_, err := io.WriteString(n.in, "\n")
	return err
}

// startsOf reads pairs of an id and a moment.
func startsOf(pairs [][2]any) []start {
	starts := make([]start, len(pairs))
	for i, pair := range pairs {
		id, _ := pair[0].(string)
		ms, _ := pair[1].(float64)
		starts[i] = start{job{id, "p"}, time.UnixMicro(int64(math.Round(ms * 1000)))}
	}
	return starts
}
