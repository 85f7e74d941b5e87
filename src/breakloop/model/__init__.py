"""The nouns: call, verdict. Slotted, standard library only, no behaviour beyond reading themselves."""
