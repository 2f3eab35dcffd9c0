package roundtrip

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/headway-go/headway/throttle/policy"
)

// mostSeen is how much of an answer's body is kept for Transport.Settle.
const mostSeen = 1 << 20

// metered is an answer's body that calls a Transport's Settle once: at its end, or when it is closed before.
type metered struct {
	io.ReadCloser
	spent  func(*http.Response) (policy.Costs, bool)
	settle func(policy.Costs) error
	answer *http.Response // the caller's
	asIs   http.Response  // of what it was when it came

	mu   sync.Mutex // a body may be closed while it is read
	seen []byte     // as the caller has read it, the end of it at least
	once sync.Once
	err  error // of settling, until Close returns it
}

func newMetered(answer *http.Response, spent func(*http.Response) (policy.Costs, bool), settle func(policy.Costs) error) *metered {
	m := &metered{ReadCloser: answer.Body, spent: spent, settle: settle, answer: answer, asIs: *answer}
	m.asIs.Header = answer.Header.Clone() // the caller's is the caller's
	m.asIs.Trailer = nil                  // it comes with the end
	return m
}

// Read reads the body, and settles at its end.
func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.see(p[:n])
	if err == io.EOF {
		m.once.Do(func() {
			m.asIs.Trailer = m.answer.Trailer.Clone()
			m.settled()
		})
	}
	return n, err
}

// see keeps what the caller has read. Twice what Settle gets is kept at most, so that each byte is moved once.
func (m *metered) see(p []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = append(m.seen, p...)
	if len(m.seen) > 2*mostSeen {
		m.seen = m.seen[:copy(m.seen, m.seen[len(m.seen)-mostSeen:])]
	}
}

// settled settles by what has been seen, and remembers what failed.
func (m *metered) settled() {
	m.mu.Lock()
	seen := m.seen
	m.seen = nil
	m.mu.Unlock()
	m.asIs.Body = io.NopCloser(bytes.NewReader(seen[max(0, len(seen)-mostSeen):]))
	costs, known := m.spent(&m.asIs)
	if !known {
		return
	}
	err := m.settle(costs)
	m.mu.Lock()
	m.err = err
	m.mu.Unlock()
}

// Close closes the body, settles unless the body's end was read, and returns an error of settling once.
func (m *metered) Close() error {
	err := m.ReadCloser.Close()
	m.once.Do(m.settled)
	m.mu.Lock()
	defer m.mu.Unlock()
	err = errors.Join(err, m.err)
	m.err = nil
	return err
}
