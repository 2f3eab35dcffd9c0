package events

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The headers of a webhook's request.
const (
	HeaderSignature = "Headway-Signature" // t=UNIX SECONDS,v1=HMAC-SHA256 of "UNIX SECONDS.BODY", in hexadecimal
	HeaderEvent     = "Headway-Event"     // the kind of the event
	HeaderEventID   = "Headway-Event-Id"  // its id: the same for every delivery of the event
)

// ErrSignature is the error for a request that was not signed with the secret, or too long ago, and for a secret that no webhook has.
var ErrSignature = errors.New("events: the signature does not match")

// sign returns the value of HeaderSignature.
func sign(secret string, body []byte, at time.Time) string {
	t := strconv.FormatInt(at.Unix(), 10)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac(secret, t, body))
}

func mac(secret, t string, body []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(t + "."))
	h.Write(body)
	return h.Sum(nil)
}

// Verify checks a request of a webhook, by the webhook's secret, the value of HeaderSignature, and the whole body. The signature must not
// be older than tolerance, or from so far in the future; 0 stands for five minutes. A secret of less than 16 characters is refused:
// without one, everybody could sign. The error wraps ErrSignature.
func Verify(secret, header string, body []byte, tolerance time.Duration) error {
	if len(secret) < minSecret {
		return fmt.Errorf("%w: the secret given to Verify has %d characters; set it to that of the webhook, which has %d or more", ErrSignature, len(secret), minSecret)
	}
	if tolerance <= 0 {
		tolerance = 5 * time.Minute
	}
	var t, given string
	for part := range strings.SplitSeq(header, ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); name {
		case "t":
			t = value
		case "v1":
			given = value
		}
	}
	signed, err := strconv.ParseInt(t, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: %s has no time", ErrSignature, HeaderSignature)
	}
	if sum, err := hex.DecodeString(given); err != nil || !hmac.Equal(sum, mac(secret, t, body)) {
		return ErrSignature
	}
	if age := time.Since(time.Unix(signed, 0)); age > tolerance || age < -tolerance {
		return fmt.Errorf("%w: it is %s old", ErrSignature, age.Round(time.Second))
	}
	return nil
}
