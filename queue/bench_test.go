package queue_test

import (
	"bytes"
	"io"
	"strconv"
)

// lines is a file of n tasks that is made while it is read.
type lines struct {
	n, next int
	queue   string
	buf     bytes.Buffer
}

func newLines(n int, queueName string) *lines { return &lines{n: n, queue: queueName} }

func (l *lines) Read(p []byte) (int, error) {
	for l.buf.Len() < len(p) && l.next < l.n {
		l.buf.WriteString(`{"type":"http","id":"inv-`)
		l.buf.WriteString(strconv.Itoa(l.next))
		l.buf.WriteString(`","scope":"payments/acme","cost":1,"queue":"`)
		l.buf.WriteString(l.queue)
		l.buf.WriteString(`","max_retry":3,"delay":"0s","timeout":"10s","http":{"method":"POST","url":"https://api.example.com/charge",` +
			`"headers":{"X-Tenant":"acme"},"body":"{\"amount\":100}"}}` + "\n")
		l.next++
	}
	if l.buf.Len() == 0 {
		return 0, io.EOF
	}
	return l.buf.Read(p)
}
