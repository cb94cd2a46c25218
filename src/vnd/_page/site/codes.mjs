export class View {}
