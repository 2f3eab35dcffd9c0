// Package network stands between a program and its Redis, and does to their connections what networks do: it delays what they
// carry, closes them, refuses new ones, holds everything back, and loses replies.
//
// The package imports testing and may be imported by tests only.
package network

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	// Ports come from between those of redistest's servers and those of their cluster
	// buses, so that an address stays free while the proxy refuses connections.
	firstPort, lastPort = 22800, 29900
	listenTries         = 100
	// listenBound is how long Accept tries to get its port back.
	listenBound = 10 * time.Second

	pieceSize = 32 << 10
	// piecesInFlight is how many pieces one direction of a connection carries before the
	// sender has to wait: with a delay of 20 ms, 200,000 a second.
	piecesInFlight = 4096
)

// Proxy passes connections on to one server. Without further calls it changes nothing. Its methods take effect at once, for
// connections that are open too, and are safe for concurrent use.
type Proxy struct {
	t        testing.TB
	upstream string
	addr     string
	wg       sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	links    map[*link]bool
	delay    time.Duration
	jitter   time.Duration
	held     bool          // traffic does not pass
	passable chan struct{} // closed when it passes again
	every    int           // which replies are lost; 0 for none
	replies  int           // since every was set
	lost     int
}

// NewProxy listens on a free port of the loopback and passes connections on to the server at upstream, host:port. It ends with t.
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, upstream: upstream, links: map[*link]bool{}, passable: make(chan struct{})}
	close(p.passable)
	var err error
	for range listenTries {
		p.addr = "127.0.0.1:" + strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort))
		if err = p.listen(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("network: no free port after %d tries: %v", listenTries, err)
	}
	t.Cleanup(func() {
		p.Refuse()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Addr returns the host:port at which the proxy listens.
func (p *Proxy) Addr() string { return p.addr }

// Delay makes everything arrive so much later, in each direction; jitter is by how much each piece may differ from that, either
// way. Bytes keep their order, and any number of them may be under way.
func (p *Proxy) Delay(delay, jitter time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.jitter = delay, jitter
}

// Cut closes all connections, as a firewall that resets them does. What they carry is dropped.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Refuse makes every further connection fail with "connection refused", until Accept. Open connections stay.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// Accept ends Refuse.
func (p *Proxy) Accept() {
	p.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var err error
	for end := time.Now().Add(listenBound); time.Now().Before(end); <-tick.C {
		if err = p.listen(); err == nil {
			return
		}
	}
	p.t.Fatalf("network: %s is taken: %v", p.addr, err)
}

// Partition holds back everything, in both directions, and closes nothing: connections are made, and nobody answers. Heal
// delivers what was held back, that of senders who have given up included, as TCP does.
func (p *Proxy) Partition() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.held {
		p.held, p.passable = true, make(chan struct{})
	}
}

// Heal ends Partition.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held {
		p.held = false
		close(p.passable)
	}
}

// LoseReplies loses every n-th piece that the server sends, of all connections together: the server has done what it was asked,
// the reply or its rest never comes, and the connection is closed. 0 loses none.
func (p *Proxy) LoseReplies(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.every, p.replies = n, 0
}

// Lost returns how many replies were lost so far.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.listener = l
	p.wg.Go(func() { p.serve(l) })
	return nil
}

func (p *Proxy) serve(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return // Refuse closed it
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			reset(client)
			continue
		}
		p.add(l, &link{client: client, server: server, over: make(chan struct{})})
	}
}

// add starts a link, unless connections are refused by now.
func (p *Proxy) add(l net.Listener, k *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != l {
		k.cut()
		return
	}
	p.links[k] = true
	up := pump{proxy: p, link: k, from: k.client, to: k.server}
	down := pump{proxy: p, link: k, from: k.server, to: k.client, replies: true}
	var both sync.WaitGroup
	both.Go(up.run)
	both.Go(down.run)
	p.wg.Go(func() {
		both.Wait()
		k.end()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, k)
	})
}

// arrival draws when what is sent now arrives.
func (p *Proxy) arrival() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.delay
	if p.jitter > 0 {
		d += rand.N(2*p.jitter) - p.jitter
	}
	return time.Now().Add(d)
}

// loses counts a reply and reports whether it is lost.
func (p *Proxy) loses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.every == 0 {
		return false
	}
	p.replies++
	if p.replies%p.every != 0 {
		return false
	}
	p.lost++
	return true
}

func (p *Proxy) passage() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passable
}

// link is one connection of a client, and ours to the server for it.
type link struct {
	client, server net.Conn
	over           chan struct{}
	once           sync.Once
}

// cut resets both connections, and end closes them.
func (l *link) cut() { l.close(reset) }
func (l *link) end() { l.close(func(c net.Conn) { _ = c.Close() }) }

func (l *link) close(each func(net.Conn)) {
	l.once.Do(func() {
		close(l.over)
		each(l.client)
		each(l.server)
	})
}

// pump carries one direction of a link.
type pump struct {
	proxy    *Proxy
	link     *link
	from, to net.Conn
	replies  bool // it carries what the server sends
}

// piece is what came in one read.
type piece struct {
	data    []byte
	arrives time.Time
	ends    ending
}

// ending is what follows a piece.
type ending int

const (
	goesOn ending = iota
	closes        // the sender has closed its side
	breaks        // the connection dies here
)

// run returns when nothing more is to come.
func (m *pump) run() {
	pieces := make(chan piece, piecesInFlight)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(pieces)
		m.read(pieces)
	})
	m.write(pieces)
	reader.Wait()
}

// read puts what comes into pieces until it ends.
func (m *pump) read(pieces chan<- piece) {
	var last time.Time
	for more := true; more; {
		buf := make([]byte, pieceSize)
		n, err := m.from.Read(buf)
		one := piece{data: buf[:n], arrives: m.proxy.arrival()}
		if err != nil {
			one.ends = closes
		}
		if n > 0 && m.replies && m.proxy.loses() {
			one.data, one.ends = nil, breaks
		}
		if one.arrives.Before(last) {
			one.arrives = last // bytes keep their order
		}
		last, more = one.arrives, one.ends == goesOn
		select {
		case pieces <- one:
		case <-m.link.over:
			return
		}
	}
}

// write passes pieces on when they arrive.
func (m *pump) write(pieces <-chan piece) {
	for one := range pieces {
		if !m.waitFor(one) {
			return
		}
		if _, err := m.to.Write(one.data); err != nil {
			m.link.cut()
			return
		}
		switch one.ends {
		case goesOn:
		case closes:
			closeWrite(m.to)
		case breaks:
			m.link.end()
		}
	}
}

// waitFor waits until a piece arrives; false means that its link is cut.
func (m *pump) waitFor(one piece) bool {
	if wait := time.Until(one.arrives); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-m.link.over:
			return false
		}
	}
	select {
	case <-m.proxy.passage():
		return true
	case <-m.link.over:
		return false
	}
}

// closeWrite tells the other side that nothing more comes.
func closeWrite(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // it may be gone
	}
}

// reset closes a connection so that the other side sees a reset, not an end.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
